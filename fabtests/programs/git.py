# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""git's daemon, which executes another program on each connection (as its standard input and output); its clients."""

import os
import signal
import subprocess

from harness import case

IDENTITY = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@localhost", "GIT_AUTHOR_DATE": "1700000000 +0000",
            "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@localhost", "GIT_COMMITTER_DATE": "1700000000 +0000",
            "GIT_CONFIG_NOSYSTEM": "1"}


@case("git", "git daemon: clone of 8 MB, push and fetch", ["git"],
          open="connections on standard input and output stay with the kernel, since stdio may use them")
def daemon(trial):
    trial.environment.update(IDENTITY, HOME=trial.folder)

    def git(*words, **options):
        return trial.run(["git", "-c", "init.defaultBranch=main", *words], **options)

    def prepare(*words):
        subprocess.run(["git", "-c", "init.defaultBranch=main", *words], check=True, cwd=trial.folder, stdin=subprocess.DEVNULL,
                       env={**os.environ, **IDENTITY, "HOME": trial.folder}, timeout=30)

    prepare("init", "-q", "work")
    for i in range(10):
        os.rename(trial.make_file("made", 800000 + i), trial.path("work/file-%d" % i))
        prepare("-C", "work", "add", ".")
        prepare("-C", "work", "commit", "-q", "-m", "commit %d" % i)
    prepare("clone", "-q", "--bare", "work", "served.git")
    server = trial.serve(["git", "daemon", "--listen=" + trial.address, "--port=%d" % trial.port, "--export-all",
                          "--base-path=" + trial.folder, "--enable=receive-pack", "--reuseaddr", trial.folder],
                         label="server")
    address = "git://%s:%d/served.git" % (trial.address, trial.port)
    git("clone", "-q", address, "copy", label="clone")
    git("-C", "copy", "fsck", "--full", "--no-progress", rsrun=False)
    trial.expect(git("-C", "copy", "rev-parse", "HEAD", rsrun=False).output() ==
                 git("-C", "work", "rev-parse", "HEAD", rsrun=False).output(), "another commit was cloned")
    os.rename(trial.make_file("made", 4 << 20), trial.path("copy/more"))
    prepare("-C", "copy", "add", ".")
    prepare("-C", "copy", "commit", "-q", "-m", "more")
    git("-C", "copy", "push", "-q", address, "HEAD:main", label="push")
    git("-C", "work", "fetch", "-q", address, "main", label="fetch")
    trial.expect(git("-C", "work", "rev-parse", "FETCH_HEAD", rsrun=False).output() ==
                 git("-C", "copy", "rev-parse", "HEAD", rsrun=False).output(), "another commit was fetched")
    for _ in range(10):
        heads = git("ls-remote", "-q", address, "refs/heads/main", label="ls-remote")
        trial.expect(heads.text().endswith("\trefs/heads/main\n"), heads.text)
    trial.expect_upgraded(2)
    trial.stop(server, status=-signal.SIGTERM)
