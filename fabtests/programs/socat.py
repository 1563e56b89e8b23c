# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""socat: select or poll on files, pipes and sockets in one set; a process for each connection."""

import echo_client
from harness import case


@case("socat", "a file to a file", ["socat"])
def one_way(trial):
    original = trial.make_file("original", 32 << 20)
    server = trial.serve(["socat", "-u", "TCP-LISTEN:%d,bind=%s" % (trial.port, trial.address), "CREATE:copy"],
                         label="server")
    trial.run(["socat", "-u", "FILE:original", "TCP:%s:%d" % (trial.address, trial.port)], label="client")
    server.wait()
    trial.expect_ended(server)
    trial.expect_upgraded()
    trial.expect_same(original, trial.path("copy"))


@case("socat", "there and back through a pipe", ["socat"])
def echo(trial):
    original = trial.make_file("original", 4 << 20)
    # Blocks of a page: socat reads its pipe itself, and would wait for ever within a write of more than there is room for.
    server = trial.serve(["socat", "-b", "4096", "TCP-LISTEN:%d,bind=%s" % (trial.port, trial.address), "PIPE"], label="server")
    with open(original, "rb") as file:
        client = trial.run(["socat", "-t", "30", "-", "TCP:%s:%d" % (trial.address, trial.port)], label="client",
                           stdin=file)
    server.wait()
    trial.expect_ended(server)
    trial.expect_upgraded()
    trial.expect_same(original, client.out_path)


@case("socat", "a server with fork, 40 clients", ["socat"])
def fork(trial):
    server = trial.serve(["socat", "TCP-LISTEN:%d,bind=%s,reuseaddr,fork" % (trial.port, trial.address), "EXEC:cat"],
                         label="server")
    echo_client.echo(trial, 40, 4, 300, 300000)
    trial.stop(server, status=143)


@case("socat", "a relay with fork between clients and a server", ["socat"])
def relay(trial):
    behind = trial.free_port()
    server = trial.serve(["socat", "TCP-LISTEN:%d,bind=%s,reuseaddr,fork" % (behind, trial.address), "PIPE"], port=behind,
                         label="server")
    proxy = trial.serve(["socat", "TCP-LISTEN:%d,bind=%s,reuseaddr,fork" % (trial.port, trial.address),
                         "TCP:%s:%d" % (trial.address, behind)], label="relay")
    echo_client.echo(trial, 20, 4, 300, 0)
    trial.expect_upgraded(20, port=behind)
    trial.stop(proxy, status=143)
    trial.stop(server, status=143)
