# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""Apache with its event MPM (processes with threads) and its prefork MPM (a process for each connection)."""

import os

import web
from harness import case

MODULES = "/usr/lib/apache2/modules"
CONFIGURATION = """
ServerRoot {folder}
ServerName localhost
PidFile {folder}/apache.pid
DefaultRuntimeDir {folder}
ErrorLog /dev/stderr
LogLevel warn
{user}
LoadModule mpm_{mpm}_module {modules}/mod_mpm_{mpm}.so
LoadModule authz_core_module {modules}/mod_authz_core.so
Listen {address}:{port}
StartServers {processes}
KeepAlive On
MaxKeepAliveRequests 0
KeepAliveTimeout 5
EnableSendfile {sendfile}
DocumentRoot {folder}
<Directory {folder}>
    Require all granted
</Directory>
"""
NEEDS = ["apache2", "curl", "ab"]


def serve(trial, mpm, sendfile="On"):
    trial.write("small", web.SMALL)
    trial.write("apache.conf", CONFIGURATION.format(
        folder=trial.folder, address=trial.address, port=trial.port, modules=MODULES, mpm=mpm, sendfile=sendfile,
        processes=25 if mpm == "prefork" else 3,
        user="User www-data\nGroup www-data" if os.geteuid() == 0 else ""))
    return trial.serve(["apache2", "-f", trial.path("apache.conf"), "-D", "FOREGROUND"])


def files(trial, mpm, sendfile):
    server = serve(trial, mpm, sendfile)
    web.large_file(trial, 50 * 1000 * 1000)
    web.small_requests(trial, 3000)
    trial.stop(server)


def many(trial, mpm):
    server = serve(trial, mpm)
    web.ab(trial, 10000, "-k")
    web.ab(trial, 1000)
    trial.stop(server)


@case("apache", "event: a file of 50 MB and 3,000 small requests by curl", NEEDS)
def event_files(trial):
    files(trial, "event", "On")


@case("apache", "event: 20 connections of ab, kept alive, and a new one for each request", NEEDS)
def event_many(trial):
    many(trial, "event")


@case("apache", "prefork: a file of 50 MB without sendfile and 3,000 small requests by curl", NEEDS)
def prefork_files(trial):
    files(trial, "prefork", "Off")


@case("apache", "prefork: 20 connections of ab, kept alive, and a new one for each request", NEEDS)
def prefork_many(trial):
    many(trial, "prefork")
