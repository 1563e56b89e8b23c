# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""Java: NIO's selectors, and sockets with threads."""

import os

from harness import HERE, case


def echo(trial, kind):
    trial.run(["javac", "-d", trial.folder, os.path.join(HERE, "Echo.java")], label="javac", rsrun=False)
    java = ["java", "-XX:+UseSerialGC", "-Xshare:auto", "-cp", trial.folder, "Echo", kind]
    server = trial.serve([*java, "server", trial.address, trial.port], label="server")
    client = trial.run([*java, "client", trial.address, trial.port], label="client")
    trial.expect(client.text() == "8 clients had everything back\n", client.text)
    server.wait()
    trial.expect_ended(server)
    trial.expect_upgraded(8)


@case("java", "NIO: one selector, eight clients", ["java", "javac"], limit=90)
def nio(trial):
    echo(trial, "nio")


@case("java", "ServerSocket and Socket, a thread each", ["java", "javac"], limit=90)
def threads(trial):
    echo(trial, "threads")
