# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""lighttpd, in one process and with workers."""

import os
import signal

import web
from harness import case

CONFIGURATION = """
server.document-root = "{folder}"
server.bind = "{address}"
server.port = {port}
server.max-keep-alive-requests = 100000
server.max-worker = {workers}
{user}
"""
NEEDS = ["lighttpd", "curl", "ab"]


def serve(trial, workers):
    trial.write("small", web.SMALL)
    user = 'server.username = "www-data"\nserver.groupname = "www-data"' if os.geteuid() == 0 else ""
    trial.write("lighttpd.conf", CONFIGURATION.format(folder=trial.folder, address=trial.address, port=trial.port,
                                                      workers=workers, user=user))
    return trial.serve(["lighttpd", "-D", "-f", trial.path("lighttpd.conf")])


@case("lighttpd", "a file of 50 MB, 3,000 small requests, 20 connections of ab", NEEDS)
def alone(trial):
    server = serve(trial, 0)
    web.large_file(trial, 50 * 1000 * 1000)
    web.small_requests(trial, 3000)
    web.ab(trial, 10000, "-k")
    trial.stop(server, signal.SIGINT)


@case("lighttpd", "two workers: 20 connections of ab, kept alive, and a new one for each request", NEEDS)
def workers(trial):
    server = serve(trial, 2)
    web.ab(trial, 10000, "-k")
    web.ab(trial, 1000)
    trial.stop(server)
