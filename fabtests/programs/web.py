# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""What the cases with web servers share: the same requests by curl and ab, whoever answers them.

The server has to serve the trial's folder, and to answer /small with SMALL.
"""

import re

SMALL = "a small answer\n"


def url(trial, port=None):
    return "http://%s:%d" % (trial.address, port or trial.port)


def large_file(trial, size):
    """A file of the trial's folder by curl, and a range of it."""
    original = trial.make_file("original", size)
    trial.run(["curl", "-sS", "-o", "copy", url(trial) + "/original"])
    trial.expect_same(original, trial.path("copy"))
    part = trial.run(["curl", "-sS", "-r", "1000000-1999999", url(trial) + "/original"])
    with open(original, "rb") as file:
        file.seek(1000000)
        trial.expect(part.output() == file.read(1000000), "a range of the file differs")
    trial.expect_upgraded()


def small_requests(trial, number):
    """Many small requests on one connection of curl."""
    ran = trial.run(["curl", "-sS", url(trial) + "/small?[1-%d]" % number])
    trial.expect(ran.text() == SMALL * number, lambda: "%d answers of %d" % (ran.text().count(SMALL), number))
    trial.expect_upgraded()


def connections(trial, number):
    """As many connections of curl, one after another; none lives long."""
    ran = trial.run(["curl", "-sS", "-H", "Connection: close", url(trial) + "/small?[1-%d]" % number])
    trial.expect(ran.text() == SMALL * number, lambda: "%d answers of %d" % (ran.text().count(SMALL), number))


def ab(trial, number, *options):
    """20 connections of ab at once; with -k they stay. The rate is returned."""
    ran = trial.run(["ab", "-q", "-n", number, "-c", "20", *options, url(trial) + "/small"])
    done, failures = (int(re.search(name + r" requests:\s+(\d+)", ran.text()).group(1)) for name in ("Complete", "Failed"))
    trial.expect(done == number and failures == 0, "%d of %d requests, %d failed" % (done, number, failures))
    trial.expect("Non-2xx" not in ran.text(), ran.text)
    if "-k" in options and number >= 10000:
        trial.expect_upgraded(20)
    return float(re.search(r"Requests per second:\s+([0-9.]+)", ran.text()).group(1))
