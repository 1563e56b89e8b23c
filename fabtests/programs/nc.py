# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""OpenBSD's nc: poll, half close, one process at each end."""

from harness import case


def transfer(trial, there, back):
    with open(back, "rb") as answer:
        server = trial.serve(["nc", "-N", "-l", trial.address, trial.port], label="server", stdin=answer)
    with open(there, "rb") as question:
        client = trial.run(["nc", "-N", trial.address, trial.port], label="client", stdin=question)
    trial.expect(server.wait() == 0, lambda: "the server ended with %d: %s" % (server.status, server.last_words()))
    trial.expect_same(there, server.out_path)
    trial.expect_same(back, client.out_path)


@case("nc", "a file each way at once", ["nc"])
def both_ways(trial):
    transfer(trial, trial.make_file("there", 16 << 20), trial.make_file("back", (16 << 20) + 1))


@case("nc", "one byte, and nothing back", ["nc"])
def one_byte(trial):
    transfer(trial, trial.make_file("there", 1), trial.make_file("back", 0))
