# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""socat without fork: select or poll on files, pipes and sockets in one set."""

from harness import case


@case("socat", "a file to a file", ["socat"])
def one_way(trial):
    original = trial.make_file("original", 32 << 20)
    server = trial.serve(["socat", "-u", "TCP-LISTEN:%d,bind=%s" % (trial.port, trial.address), "CREATE:copy"],
                         label="server")
    trial.run(["socat", "-u", "FILE:original", "TCP:%s:%d" % (trial.address, trial.port)], label="client")
    trial.expect(server.wait() == 0, lambda: server.last_words())
    trial.expect_same(original, trial.path("copy"))


@case("socat", "there and back through a pipe", ["socat"])
def echo(trial):
    original = trial.make_file("original", 4 << 20)
    # Blocks of a page: socat reads its pipe itself, and would wait for ever within a write of more than there is room for.
    server = trial.serve(["socat", "-b", "4096", "TCP-LISTEN:%d,bind=%s" % (trial.port, trial.address), "PIPE"], label="server")
    with open(original, "rb") as file:
        client = trial.run(["socat", "-t", "30", "-", "TCP:%s:%d" % (trial.address, trial.port)], label="client",
                           stdin=file)
    trial.expect(server.wait() == 0, lambda: server.last_words())
    trial.expect_same(original, client.out_path)
