# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""Python servers of several processes: accepting on one listener, and forking for each connection. As a program of its own,
the servers."""

import os
import signal
import socket
import socketserver
import sys

WORKERS = 4


def echo(connection):
    while data := connection.recv(65536):
        connection.sendall(data)


def prefork(address):
    """The parent listens; its children accept and serve one connection after another."""
    listener = socket.create_server(address, backlog=64)
    workers = []
    for _ in range(WORKERS):
        worker = os.fork()
        if worker == 0:
            while True:
                connection, _ = listener.accept()
                with connection:
                    echo(connection)
        workers.append(worker)

    def end(*_):
        for worker in workers:
            os.kill(worker, signal.SIGTERM)
        for worker in workers:
            os.waitpid(worker, 0)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    while True:
        signal.pause()


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        echo(self.request)


class ForkingServer(socketserver.ForkingTCPServer):
    allow_reuse_address = True
    request_queue_size = 64


def forking(address):
    def end(*_):
        raise SystemExit(0)

    with ForkingServer(address, Echo) as server:
        signal.signal(signal.SIGTERM, end)
        server.serve_forever()


def passing(address):
    """The parent accepts, and passes each connection to one of its workers (SCM_RIGHTS)."""
    listener = socket.create_server(address, backlog=64)
    channels, workers = [], []
    for _ in range(WORKERS):
        ours, theirs = socket.socketpair()
        worker = os.fork()
        if worker == 0:
            listener.close()
            ours.close()
            while True:
                _, fds, _, _ = socket.recv_fds(theirs, 1, 1)
                if not fds:
                    os._exit(0)
                with socket.socket(fileno=fds[0]) as connection:
                    echo(connection)
        theirs.close()
        channels.append(ours)
        workers.append(worker)

    def end(*_):
        for channel in channels:
            channel.close()
        for worker in workers:
            os.waitpid(worker, 0)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    turn = 0
    while True:
        connection, _ = listener.accept()
        with connection:
            socket.send_fds(channels[turn % WORKERS], [b"c"], [connection.fileno()])
        turn += 1


if __name__ == "__main__":
    {"prefork": prefork, "forking": forking, "passing": passing}[sys.argv[1]]((sys.argv[2], int(sys.argv[3])))
else:
    import echo_client
    from harness import case

    def serve(trial, kind):
        return trial.serve([sys.executable, __file__, kind, trial.address, trial.port], label="server")

    @case("python", "four processes accepting on one listener, 40 clients", [])
    def prefork_pool(trial):
        server = serve(trial, "prefork")
        echo_client.echo(trial, 40, WORKERS, 300, 300000)
        trial.stop(server)

    @case("python", "connections that are passed to four processes (SCM_RIGHTS), 40 clients", [])
    def passing_pool(trial):
        server = serve(trial, "passing")
        echo_client.echo(trial, 40, WORKERS, 300, 300000)
        trial.stop(server)

    @case("python", "socketserver.ForkingTCPServer: 20 clients, 300,000 bytes each way", [])
    def forking_server(trial):
        server = serve(trial, "forking")
        echo_client.echo(trial, 20, 5, 300, 300000)
        trial.stop(server)

    @case("python", "socketserver.ForkingTCPServer: 200 short connections", [])
    def forking_server_short(trial):
        server = serve(trial, "forking")
        echo_client.echo(trial, 200, 10, 1, 100)
        trial.stop(server)
