# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""nginx, in one process and with workers as Debian has it: edge-triggered epoll, sendfile, accept4; with curl and ab."""

import os
import signal

import web
from harness import case

CONFIGURATION = """
pid {folder}/nginx.pid;
error_log stderr warn;
{processes}
events {{ worker_connections 768; }}
http {{
    access_log off;
    sendfile {sendfile};
    tcp_nopush on;
    types_hash_max_size 2048;
    keepalive_requests 100000;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen {address}:{port}{options};
        location / {{ root {folder}; }}
        location /small {{ return 200 "a small answer\\n"; }}
    }}
}}
"""
# In front of another one, to which it keeps connections: it adds each to its epoll set before it connects.
PROXY = """
pid {folder}/proxy.pid;
error_log stderr error;
{processes}
events {{ worker_connections 768; }}
http {{
    access_log off;
    keepalive_requests 100000;
    client_body_temp_path {folder}/proxy-body;
    proxy_temp_path {folder}/proxy-proxy;
    fastcgi_temp_path {folder}/proxy-fastcgi;
    uwsgi_temp_path {folder}/proxy-uwsgi;
    scgi_temp_path {folder}/proxy-scgi;
    upstream behind {{
        server {address}:{behind};
        keepalive 8;
        keepalive_requests 100000;
    }}
    server {{
        listen {address}:{port};
        location / {{
            proxy_pass http://behind;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_buffering {buffering};
        }}
    }}
}}
"""
ALONE = "daemon off; master_process off;"
WORKERS = "daemon off; worker_processes 2;"
DAEMON = "worker_processes 2;"


def configure(trial, processes, port=None, sendfile="on", options=""):
    if os.geteuid() == 0 and processes != ALONE:
        processes = "user www-data; " + processes
    trial.write("nginx.conf", CONFIGURATION.format(folder=trial.folder, address=trial.address, port=port or trial.port,
                                                   sendfile=sendfile, processes=processes, options=options))
    return ["nginx", "-e", "stderr", "-p", trial.folder, "-c", trial.path("nginx.conf")]


def serve(trial, processes=ALONE, port=None, **options):
    return trial.serve(configure(trial, processes, port, **options), port=port)


def end(trial, server):
    """It ends when its connections are closed."""
    trial.stop(server, signal.SIGQUIT)


@case("nginx", "one process: curl of 100 MB and of a range of it", ["nginx", "curl"])
def large_sendfile(trial):
    server = serve(trial)
    web.large_file(trial, 100 * 1000 * 1000)
    end(trial, server)


@case("nginx", "one process: curl of 100 MB without sendfile", ["nginx", "curl"])
def large(trial):
    server = serve(trial, sendfile="off")
    web.large_file(trial, 100 * 1000 * 1000)
    end(trial, server)


@case("nginx", "one process: 10,000 small requests of one curl", ["nginx", "curl"], lab=True, limit=120)
def many(trial):
    server = serve(trial)
    web.small_requests(trial, trial.scale(10000, 12000))
    end(trial, server)


@case("nginx", "one process: 300 connections of curl, one after another", ["nginx", "curl"])
def connections(trial):
    server = serve(trial)
    web.connections(trial, 300)
    end(trial, server)


@case("nginx", "two workers: curl of 100 MB and of a range of it", ["nginx", "curl"])
def workers_large(trial):
    server = serve(trial, WORKERS)
    web.large_file(trial, 100 * 1000 * 1000)
    end(trial, server)


@case("nginx", "two workers: 5,000 small requests of one curl", ["nginx", "curl"], lab=True, limit=120)
def workers_many(trial):
    server = serve(trial, WORKERS)
    web.small_requests(trial, trial.scale(5000, 12000))
    end(trial, server)


@case("nginx", "two workers with a listener each (reuseport), 20 connections of ab", ["nginx", "ab"])
def workers_reuseport(trial):
    server = serve(trial, WORKERS, options=" reuseport")
    web.ab(trial, 20000, "-k")
    end(trial, server)


@case("nginx", "as a daemon with two workers, which are replaced by a reload while ab runs", ["nginx", "ab"])
def daemon(trial):
    command = configure(trial, DAEMON)
    started = trial.run(command, label="start")
    trial.wait_for_listener(started)
    client = trial.start(["ab", "-q", "-n", "40000", "-c", "20", "-k", "-r", web.url(trial) + "/small"], label="ab")
    trial.run(command + ["-s", "reload"], label="reload")
    client.wait()
    trial.expect_ended(client)
    web.small_requests(trial, 500)
    trial.run(command + ["-s", "quit"], label="quit")
    trial.wait_until(lambda: not os.path.exists(trial.path("nginx.pid")), "end of nginx")


def proxy(trial, buffering):
    behind = trial.free_port()
    server = serve(trial, ALONE, port=behind)
    trial.write("proxy.conf", PROXY.format(folder=trial.folder, address=trial.address, port=trial.port, behind=behind,
                                           processes=ALONE, buffering=buffering))
    front = trial.serve(["nginx", "-e", "stderr", "-p", trial.folder, "-c", trial.path("proxy.conf")])
    web.small_requests(trial, 3000)
    web.large_file(trial, 50 * 1000 * 1000)
    web.ab(trial, 10000, "-k")
    end(trial, front)
    trial.expect_upgraded(2, port=behind)
    end(trial, server)


@case("nginx", "a proxy with kept connections: 3,000 small requests, a file of 50 MB, 20 connections of ab",
      ["nginx", "curl", "ab"])
def proxy_buffered(trial):
    proxy(trial, "on")


@case("nginx", "the same without a buffer between them (proxy_buffering off)", ["nginx", "curl", "ab"])
def proxy_unbuffered(trial):
    proxy(trial, "off")


@case("ab", "20 connections at once to nginx in one process, kept alive", ["nginx", "ab"])
def ab_keepalive(trial):
    server = serve(trial)
    web.ab(trial, 20000, "-k")
    end(trial, server)


@case("ab", "20 connections at once to nginx in one process, a new one for each request", ["nginx", "ab"])
def ab_connections(trial):
    server = serve(trial)
    web.ab(trial, 600)
    end(trial, server)


@case("ab", "20 connections at once to nginx with two workers, kept alive", ["nginx", "ab"])
def ab_workers_keepalive(trial):
    server = serve(trial, WORKERS)
    web.ab(trial, 20000, "-k")
    end(trial, server)


@case("ab", "20 connections at once to nginx with two workers, a new one for each request", ["nginx", "ab"])
def ab_workers_connections(trial):
    server = serve(trial, WORKERS)
    web.ab(trial, 3000)
    end(trial, server)
