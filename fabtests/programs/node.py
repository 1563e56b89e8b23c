# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""node: libuv, which uses epoll_pwait and non-blocking sockets from socket() on."""

import os

from harness import HERE, case


@case("node", "http server and client: 200 requests kept alive, a body of 8 MB there and back", ["node"])
def http(trial):
    script = os.path.join(HERE, "node_http.js")
    server = trial.serve(["node", script, "server", trial.address, trial.port], label="server")
    client = trial.run(["node", script, "client", trial.address, trial.port], label="client")
    trial.expect(client.text() == "201 answers as they should be\n", client.text)
    server.stop()
    trial.expect(server.status == 0, lambda: "the server ended with %d: %s" % (server.status, server.last_words()))
