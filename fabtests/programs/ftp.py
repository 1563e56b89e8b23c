# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""vsftpd: processes for each session, confined by a chroot and a filter of system calls; data connections of their own."""

import os
import shutil

from harness import case

CONFIGURATION = """
listen=YES
background=NO
listen_address={address}
listen_port={port}
{user}
anonymous_enable=YES
anon_root={folder}/served
no_anon_password=YES
anon_upload_enable=YES
write_enable=YES
anon_umask=022
pasv_min_port={data}
pasv_max_port={data}
port_enable=NO
secure_chroot_dir={folder}/empty
xferlog_enable=NO
"""


@case("vsftpd", "curl: 16 MB there and back, a listing", ["vsftpd", "curl"])
def files(trial):
    data = trial.free_port()
    for name in ("served", "served/in", "empty"):
        os.makedirs(trial.path(name))
    user = "run_as_launching_user=YES"
    if os.geteuid() == 0:
        os.chmod(trial.path("served"), 0o555)  # the root of a confined process may not be writable
        user = "nopriv_user=nobody"
        shutil.chown(trial.path("served/in"), "ftp")  # as whom it serves, made by the package
    original = trial.make_file("original", 16 << 20)
    trial.write("vsftpd.conf", CONFIGURATION.format(address=trial.address, port=trial.port, folder=trial.folder, data=data,
                                                      user=user))
    server = trial.serve(["vsftpd", trial.path("vsftpd.conf")])
    url = "ftp://%s:%d/in/" % (trial.address, trial.port)
    trial.run(["curl", "-sS", "-T", original, url + "copy"])
    trial.expect_same(original, trial.path("served/in/copy"))
    trial.run(["curl", "-sS", "-o", "back", url + "copy"])
    trial.expect_same(original, trial.path("back"))
    listing = trial.run(["curl", "-sS", "-l", url])
    trial.expect(listing.text().split() == ["copy"], listing.text)
    trial.records_expected = os.geteuid() != 0  # a confined process may be unable to write them
    trial.stop(server, status=-15)
