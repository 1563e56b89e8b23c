# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""rsync's daemon, which forks for each connection; a client whose two processes use one connection."""

import filecmp
import os
import random

from harness import case

CONFIGURATION = """
use chroot = no
pid file = {folder}/rsyncd.pid
log file = {folder}/rsyncd.log
{user}
[files]
    path = {folder}/served
    read only = no
"""


def same(one, other):
    compared = filecmp.dircmp(one, other)
    if compared.left_only or compared.right_only or compared.funny_files:
        return False
    _, different, errors = filecmp.cmpfiles(one, other, compared.common_files, shallow=False)
    return not different and not errors and all(same(os.path.join(one, name), os.path.join(other, name))
                                                for name in compared.common_dirs)


def make_tree(trial, name):
    generator = random.Random(3)
    for i in range(300):
        folder = trial.path("%s/%d" % (name, i % 7))
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "file-%d" % i), "wb") as file:
            file.write(generator.randbytes(generator.choice((0, 10, 5000, 100000))))
    os.rename(trial.make_file("large", 20 << 20), trial.path(name + "/large"))


@case("rsync", "a daemon: a tree of 300 files and 30 MB there and back, and once more with changes", ["rsync"])
def daemon(trial):
    os.makedirs(trial.path("served"))
    make_tree(trial, "original")
    trial.write("rsyncd.conf", CONFIGURATION.format(folder=trial.folder, user="uid = root\ngid = root" if os.geteuid() == 0
                                                    else ""))
    server = trial.serve(["rsync", "--daemon", "--no-detach", "--config=" + trial.path("rsyncd.conf"), "--address=" +
                          trial.address, "--port=%d" % trial.port], label="server")
    module = "rsync://%s:%d/files/" % (trial.address, trial.port)
    listing = trial.run(["rsync", "rsync://%s:%d/" % (trial.address, trial.port)])
    trial.expect(listing.text().split() == ["files"], listing.text)
    trial.run(["rsync", "-a", "original/", module + "tree/"], label="upload")
    trial.expect(same(trial.path("original"), trial.path("served/tree")), "the tree differs at the server")
    trial.run(["rsync", "-a", module + "tree/", "copy/"], label="download")
    trial.expect(same(trial.path("original"), trial.path("copy")), "the copy differs")
    with open(trial.path("original/large"), "r+b") as file:
        file.seek(5 << 20)
        file.write(b"changed")
    os.unlink(trial.path("original/0/file-0"))
    trial.run(["rsync", "-a", "-c", "-z", "--no-whole-file", "--delete", "original/", module + "tree/"], label="again")
    trial.expect(same(trial.path("original"), trial.path("served/tree")), "the tree differs after changes")
    missing = trial.run(["rsync", module + "none", "none"], status=23, label="missing")
    trial.expect("No such file" in missing.errors(), missing.errors)
    trial.expect_upgraded(2)
    trial.stop(server)
