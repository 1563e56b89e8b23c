# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""OpenSSH: sshd executes itself for each connection, and hands it from a confined process to another; ssh and scp."""

import getpass
import os
import shutil

from harness import case

CONFIGURATION = """
Port {port}
ListenAddress {address}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile {folder}/sshd.pid
LogLevel ERROR
UsePAM no
StrictModes no
PasswordAuthentication no
PermitRootLogin prohibit-password
Subsystem sftp {sftp}
MaxStartups 50
"""
SFTP = "/usr/lib/openssh/sftp-server"
NEEDS = ["sshd", "ssh", "scp", "ssh-keygen"]


def serve(trial):
    for name in ("host_key", "user_key"):
        trial.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", trial.path(name)], rsrun=False)
    trial.write("sshd.conf", CONFIGURATION.format(port=trial.port, address=trial.address, folder=trial.folder,
                                                  sftp=SFTP if os.path.exists(SFTP) else "internal-sftp"))
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)  # where a confined process has its root
    return trial.serve([shutil.which("sshd"), "-D", "-e", "-f", trial.path("sshd.conf")])


def options(trial):
    return ["-F", "none", "-i", trial.path("user_key"), "-o", "IdentitiesOnly=yes", "-o", "StrictHostKeyChecking=no", "-o",
            "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "-o", "BatchMode=yes"]


def ssh(trial, *words, **more):
    return trial.run(["ssh", *options(trial), "-p", trial.port, "%s@%s" % (getpass.getuser(), trial.address), *words], **more)


@case("ssh", "six commands, some of which fail; 16 MB through cat", NEEDS)
def commands(trial):
    server = serve(trial)
    for i in range(6):
        ran = ssh(trial, "echo number %d; exit %d" % (i, i % 2), status=i % 2)
        trial.expect(ran.text() == "number %d\n" % i, ran.text)
    original = trial.make_file("original", 16 << 20)
    with open(original, "rb") as file:
        copy = ssh(trial, "cat", stdin=file)
    trial.expect_same(original, copy.out_path)
    trial.expect_upgraded()
    trial.stop(server)


@case("ssh", "scp of 192 MB there and back", NEEDS)
def scp(trial):
    server = serve(trial)
    original = trial.make_file("original", 192 << 20)
    host = "%s@%s:" % (getpass.getuser(), trial.address)
    command = ["scp", "-q", *options(trial), "-P", trial.port]
    trial.run([*command, original, host + trial.path("there")])
    trial.run([*command, host + trial.path("there"), trial.path("back")])
    trial.expect_same(original, trial.path("there"))
    trial.expect_same(original, trial.path("back"))
    trial.expect_upgraded(1)  # of two, of some 300 ms each: the filtered process is gone before one is worth it
    trial.stop(server)
