# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""python's http.server, which has a thread for each connection, with curl and wget."""

import os
import signal
import sys

from harness import case


def serve(trial):
    size = trial.scale(32, 2) << 20
    original = trial.make_file("original", size)
    server = trial.serve([sys.executable, "-m", "http.server", "--bind", trial.address, trial.port], label="http.server")
    return server, original, "http://%s:%d" % (trial.address, trial.port)


def end(trial, server):
    trial.stop(server, signal.SIGINT)


@case("python http.server", "a file, a listing and a missing page by curl", ["curl"])
def curl(trial):
    server, original, url = serve(trial)
    trial.run(["curl", "-sS", "-o", "copy", url + "/original"])
    trial.expect_same(original, trial.path("copy"))
    trial.expect_upgraded()
    listing = trial.run(["curl", "-sS", url + "/"])
    trial.expect('href="original"' in listing.text(), "the listing does not name the file")
    missing = trial.run(["curl", "-sS", "-o", os.devnull, "-w", "%{http_code}", url + "/none"])
    trial.expect(missing.text() == "404", "status %s for a page that is not there" % missing.text())
    end(trial, server)


@case("python http.server", "a file by wget", ["wget"])
def wget(trial):
    server, original, url = serve(trial)
    trial.run(["wget", "-nv", "--no-config", "--tries=1", "-O", "copy", url + "/original"])
    trial.expect_same(original, trial.path("copy"))
    trial.expect_upgraded()
    end(trial, server)
