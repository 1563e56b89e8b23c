# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""Perl: a server that forks for each connection, and a client of several processes."""

import os

import echo_client
from harness import HERE, case


@case("perl", "a forking echo server, 200 clients", ["perl"])
def forking(trial):
    script = os.path.join(HERE, "echo.pl")
    server = trial.serve(["perl", script, "server", trial.address, trial.port], label="server")
    ran = trial.run(["perl", script, "client", trial.address, trial.port], label="client")
    trial.expect(ran.text() == "200 of 200 clients had everything back\n", ran.text)
    trial.expect_upgraded(150)
    trial.stop(server)


@case("perl", "a forking echo server, 20 clients that send and receive at once", ["perl"])
def bulk(trial):
    server = trial.serve(["perl", os.path.join(HERE, "echo.pl"), "server", trial.address, trial.port], label="server")
    echo_client.echo(trial, 20, 5, 300, 300000)
    trial.stop(server)
