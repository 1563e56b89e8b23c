# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""node: libuv, which uses epoll_pwait and non-blocking sockets from socket() on; how connections end; several processes."""

import os

from harness import HERE, case


@case("node", "http server and client: 200 requests kept alive, a body of 8 MB there and back", ["node"])
def http(trial):
    script = os.path.join(HERE, "node_http.js")
    server = trial.serve(["node", script, "server", trial.address, trial.port], label="server")
    client = trial.run(["node", script, "client", trial.address, trial.port], label="client")
    trial.expect(client.text() == "201 answers as they should be\n", client.text)
    trial.expect_upgraded(4)
    trial.stop(server)


def sockets(trial, what, said, ready=""):
    script = os.path.join(HERE, "node_sockets.js")
    server = trial.serve(["node", script, what, "server", trial.address, trial.port], label="server")
    trial.wait_until(lambda: ready in server.text(), "server that is ready")
    client = trial.run(["node", script, what, "client", trial.address, trial.port], label="client")
    trial.expect(client.text() == said + "\n", client.text)
    return server


@case("node", "a connection that the server closes after its keepAliveTimeout", ["node"])
def timeout(trial):
    server = sockets(trial, "timeout", "closed twice after the timeout")
    trial.expect_upgraded(2)
    trial.stop(server)


@case("node", "socket.destroy() at either end of a quiet connection", ["node"])
def destroy(trial):
    server = sockets(trial, "destroy", "both ends were seen")
    trial.wait_until(lambda: server.text().count("\n") == 2, "close at the server")
    trial.expect(server.text() == "closed after 400 lines\nclosed after 500 lines\n", server.text)
    trial.expect_upgraded(2)
    trial.stop(server)


@case("node", "socket.destroy() while the other end sends", ["node"])
def cut(trial):
    server = sockets(trial, "cut", "four were cut")
    trial.expect_upgraded(4)
    trial.stop(server)


@case("node", "cluster: two workers, to which connections are passed", ["node"])
def cluster(trial):
    server = sockets(trial, "cluster", "2 workers answered", ready="all listen")
    trial.expect_upgraded(8)
    trial.stop(server)


@case("node", "cluster: two workers that accept on one listener", ["node"])
def cluster_shared(trial):
    script = os.path.join(HERE, "node_sockets.js")
    server = trial.serve(["node", script, "cluster", "server", trial.address, trial.port], label="server",
                         environment={"NODE_CLUSTER_SCHED_POLICY": "none"})
    client = trial.run(["node", script, "cluster", "client", trial.address, trial.port], label="client")
    # One of them may be quicker every time.
    trial.expect(client.text() in ("1 workers answered\n", "2 workers answered\n"), client.text)
    trial.expect_upgraded(8)
    trial.stop(server)
