# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""gunicorn with three workers that accept on one listener: each with one connection at a time, and with threads."""

import web
from harness import case

APPLICATION = '''
def application(environ, start_response):
    if environ["REQUEST_METHOD"] == "POST":
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
    elif environ["PATH_INFO"] == "/small":
        body = b"a small answer\\n"
    else:
        with open("original", "rb") as file:
            body = file.read()
    start_response("200 OK", [("Content-Type", "application/octet-stream"), ("Content-Length", str(len(body)))])
    return [body]
'''
NEEDS = ["gunicorn", "curl", "ab"]


def serve(trial, *options):
    trial.write("application.py", APPLICATION)
    return trial.serve(["gunicorn", "-w", "3", "-b", "%s:%d" % (trial.address, trial.port), "--log-level", "warning",
                        "--worker-tmp-dir", trial.folder, *options, "application"])


def bodies(trial, number, size):
    """There and back, some at once."""
    original = trial.make_file("original", size)
    trial.run(["curl", "-sS", "--no-progress-meter", "-Z", "--parallel-max", "4", "--data-binary", "@original",
               "-o", "copy.#1", web.url(trial) + "/echo?[1-%d]" % number])
    for i in range(1, number + 1):
        trial.expect_same(original, trial.path("copy.%d" % i))


@case("gunicorn", "three workers: bodies of 4 MB there and back, 500 connections of ab", NEEDS)
def sync(trial):
    server = serve(trial)
    bodies(trial, 12, 4 << 20)
    trial.expect_upgraded(6)
    web.ab(trial, 500)
    trial.stop(server)


@case("gunicorn", "three workers with threads: bodies of 4 MB there and back, 1,000 requests of one curl", NEEDS)
def threads(trial):
    # It resets a connection that was idle for 2 s, with a request unread in it if the machine paused for as long.
    server = serve(trial, "-k", "gthread", "--threads", "8", "--keep-alive", "60")
    bodies(trial, 12, 4 << 20)
    web.small_requests(trial, 1000)
    web.ab(trial, 2000, "-k")
    trial.stop(server)
