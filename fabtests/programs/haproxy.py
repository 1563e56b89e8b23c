# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""haproxy in front of nginx: as a proxy of HTTP, and of bytes, which it may move by splice."""

import signal

import nginx
import web
from harness import case

CONFIGURATION = """
global
    nbthread 2
    maxconn 1000
defaults
    mode {mode}
    {options}
    timeout connect 5s
    timeout client 30s
    timeout server 30s
frontend front
    bind {address}:{port}
    default_backend back
backend back
    server nginx {address}:{behind}
"""
# It ends by SIGTERM, without the records of the connections that it keeps to nginx: those of the other end are looked at.
NEEDS = ["haproxy", "nginx", "curl", "ab"]


def serve(trial, mode, options="", master=False):
    behind = trial.free_port()
    server = nginx.serve(trial, nginx.WORKERS, port=behind)
    trial.write("haproxy.conf", CONFIGURATION.format(mode=mode, options=options, address=trial.address, port=trial.port,
                                                     behind=behind))
    proxy = trial.serve(["haproxy", "-W" if master else "-db", "-f", trial.path("haproxy.conf")])
    return proxy, server, behind


@case("haproxy", "http: a file of 50 MB, 3,000 small requests, 20 connections of ab", NEEDS)
def http(trial):
    proxy, server, behind = serve(trial, "http", "option http-keep-alive\n    http-reuse always")
    web.large_file(trial, 50 * 1000 * 1000)
    web.small_requests(trial, 3000)
    web.ab(trial, 10000, "-k")
    trial.expect_upgraded(2, port=behind, one_end=True)
    trial.stop(proxy, status=-signal.SIGTERM)
    nginx.end(trial, server)


@case("haproxy", "tcp with splice: a file of 50 MB, 3,000 small requests, 20 connections of ab", NEEDS)
def splice(trial):
    proxy, server, behind = serve(trial, "tcp", "option splice-auto")
    web.large_file(trial, 50 * 1000 * 1000)
    web.small_requests(trial, 3000)
    web.ab(trial, 10000, "-k")
    trial.expect_upgraded(21, port=behind, one_end=True)
    trial.stop(proxy, status=-signal.SIGTERM)
    nginx.end(trial, server)


@case("haproxy", "master and worker: 20 connections of ab, kept alive, and a new one for each request", NEEDS)
def master_worker(trial):
    proxy, server, behind = serve(trial, "http", "option http-keep-alive", master=True)
    web.ab(trial, 10000, "-k")
    web.ab(trial, 1000)
    trial.expect_upgraded(20, port=behind, one_end=True)
    trial.stop(proxy, status=0)
    nginx.end(trial, server)
