# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""OpenBSD's nc: poll, half close, one process at each end."""

import os
import shutil
import subprocess
import threading
import time

from harness import case


def transfer(trial, there, back):
    with open(back, "rb") as answer:
        server = trial.serve(["nc", "-N", "-l", trial.address, trial.port], label="server", stdin=answer)
    client = trial.start(["nc", "-N", trial.address, trial.port], label="client", stdin=subprocess.PIPE)

    def feed():
        # A listening nc ends at its client's end of stream, whatever it still has to send: that has to come first.
        try:
            with open(there, "rb") as question, client.process.stdin as pipe:
                shutil.copyfileobj(question, pipe)
                pipe.flush()
                while (os.path.getsize(client.out_path) < os.path.getsize(back) and client.process.poll() is None
                       and time.monotonic() < trial.deadline):
                    time.sleep(0.02)
        except OSError:
            pass  # the client ended early, which its status and its output tell

    feeder = threading.Thread(target=feed)
    feeder.start()
    trial.expect(client.wait() == 0, lambda: "the client ended with %d: %s" % (client.status, client.last_words()))
    feeder.join()
    trial.expect(server.wait() == 0, lambda: "the server ended with %d: %s" % (server.status, server.last_words()))
    trial.expect_same(there, server.out_path)
    trial.expect_same(back, client.out_path)


@case("nc", "a file each way at once", ["nc"])
def both_ways(trial):
    transfer(trial, trial.make_file("there", 16 << 20), trial.make_file("back", (16 << 20) + 1))
    trial.expect_upgraded()


@case("nc", "one byte, and nothing back", ["nc"])
def one_byte(trial):
    transfer(trial, trial.make_file("there", 1), trial.make_file("back", 0))
