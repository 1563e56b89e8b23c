# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""iperf3: a control connection and streams beside it; select.

It compares no content; its own way to send a file (-F) damages what is sent in parts, on kernel TCP as well.
"""

import json

from harness import case


def measure(trial, streams, *options):
    server = trial.serve(["iperf3", "-s", "-1", "-B", trial.address, "-p", trial.port])
    # On emulated devices it takes some seconds until a connection is on them.
    amount = trial.scale(256, 1) << 20
    length = trial.scale(["-n", amount], ["-t", 15])
    client = trial.run(["iperf3", "-c", trial.address, "-p", trial.port, *length, "--json", *options])
    end = json.loads(client.text())["end"]
    sent, received = end["sum_sent"]["bytes"], end["sum_received"]["bytes"]
    trial.expect(sent >= amount, "%d bytes of %d were sent" % (sent, amount))
    # Streams of the reverse direction are cut where the client has had enough.
    trial.expect(0 < received <= sent, "%d bytes were received of %d" % (received, sent))
    server.wait()
    trial.expect_ended(server)
    trial.expect_upgraded(streams)


@case("iperf3", "one stream", ["iperf3"], lab=True)
def one_stream(trial):
    measure(trial, 1)


@case("iperf3", "four streams at once (-P 4)", ["iperf3"])
def parallel(trial):
    measure(trial, 4, "-P", "4")


@case("iperf3", "from the server (-R)", ["iperf3"], lab=True)
def reverse(trial):
    measure(trial, 1, "-R")
