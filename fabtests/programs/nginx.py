# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""nginx in one process: edge-triggered epoll, sendfile, accept4; with curl and ab."""

import re
import signal

from harness import case

CONFIGURATION = """
daemon off;
master_process off;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 512; }}
http {{
    access_log off;
    sendfile {sendfile};
    keepalive_requests 100000;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen {address}:{port};
        location / {{ root {folder}; }}
        location /small {{ return 200 "a small answer\\n"; }}
    }}
}}
"""


def serve(trial, sendfile="on"):
    trial.write("nginx.conf", CONFIGURATION.format(folder=trial.folder, address=trial.address, port=trial.port,
                                                   sendfile=sendfile))
    server = trial.serve(["nginx", "-e", "stderr", "-p", trial.folder, "-c", trial.path("nginx.conf")])
    return server, "http://%s:%d" % (trial.address, trial.port)


def end(trial, server):
    server.stop(signal.SIGQUIT)
    trial.expect(server.status == 0, lambda: "the server ended with %d: %s" % (server.status, server.last_words()))


def download(trial, sendfile):
    original = trial.make_file("original", trial.scale(100, 8) * 1000 * 1000)
    server, url = serve(trial, sendfile)
    trial.run(["curl", "-sS", "-o", "copy", url + "/original"])
    trial.expect_same(original, trial.path("copy"))
    part = trial.run(["curl", "-sS", "-r", "1000000-1999999", url + "/original"])
    with open(original, "rb") as file:
        file.seek(1000000)
        trial.expect(part.output() == file.read(1000000), "a range of the file differs")
    end(trial, server)


@case("nginx", "curl of 100 MB and of a range of it", ["nginx", "curl"], lab=True)
def large_sendfile(trial):
    download(trial, "on")


@case("nginx", "curl of 100 MB without sendfile", ["nginx", "curl"])
def large(trial):
    download(trial, "off")


@case("nginx", "10,000 small requests of one curl", ["nginx", "curl"], lab=True)
def many(trial):
    number = trial.scale(10000, 500)
    server, url = serve(trial)
    ran = trial.run(["curl", "-sS", url + "/small?[1-%d]" % number])
    trial.expect(ran.text() == "a small answer\n" * number, "%d answers" % ran.text().count("a small answer\n"))
    end(trial, server)


@case("nginx", "300 connections of curl, one after another", ["nginx", "curl"])
def connections(trial):
    server, url = serve(trial)
    ran = trial.run(["curl", "-sS", "-H", "Connection: close", url + "/small?[1-300]"])
    trial.expect(ran.text() == "a small answer\n" * 300, "%d answers" % ran.text().count("a small answer\n"))
    end(trial, server)


def ab(trial, number, *options):
    server, url = serve(trial)
    ran = trial.run(["ab", "-q", "-n", number, "-c", "20", *options, url + "/small"])
    done, failures = (int(re.search(name + r" requests:\s+(\d+)", ran.text()).group(1)) for name in ("Complete", "Failed"))
    trial.expect(done == number and failures == 0, "%d of %d requests, %d failed" % (done, number, failures))
    trial.expect("Non-2xx" not in ran.text(), ran.text)
    end(trial, server)


@case("ab", "20 connections at once to nginx, kept alive", ["nginx", "ab"])
def ab_keepalive(trial):
    ab(trial, 20000, "-k")


@case("ab", "20 connections at once to nginx, a new one for each request", ["nginx", "ab"])
def ab_connections(trial):
    ab(trial, 600)
