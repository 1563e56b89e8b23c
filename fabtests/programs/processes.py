# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""Connections that change hands mid-stream: by fork, exec, SCM_RIGHTS, and a process that is killed.

As a program of its own, `processes.py server|client WHAT ADDRESS PORT`. The client waits for each message to come back before
it sends the next one, so no process at the other end reads ahead.
"""

import os
import signal
import socket
import subprocess
import sys
import time

SIZE = 64
MESSAGES = 400
CONNECTIONS = 5
STAGE = 50  # messages, after which the connection changes hands
LAST_WORDS = 200000
FIRST = 16  # messages of a stage, with pauses behind them: an upgrade takes the time in which both ends' services meet
PAUSE = 0.003


def message(i):
    return (b"message %d " % i * SIZE)[:SIZE]


def take(connection):
    """One message, or nothing at the end of the stream."""
    data = connection.recv(SIZE, socket.MSG_WAITALL)
    if len(data) not in (0, SIZE):
        raise EOFError("an end within a message, after %d bytes" % len(data))
    return data


def echo(connection, number=-1):
    """So many messages, or all; false at the end of the stream."""
    while number != 0:
        data = take(connection)
        if not data:
            return False
        connection.sendall(data)
        number -= 1
    return True


def ask(connection, first, number):
    for i in range(first, first + number):
        connection.sendall(message(i))
        if take(connection) != message(i):
            raise ValueError("message %d came back changed" % i)
        if i < first + FIRST:
            time.sleep(PAUSE)


def finish(connection):
    connection.shutdown(socket.SHUT_WR)
    if connection.recv(1):
        raise ValueError("there were bytes behind the last message")


def wait_for(child):
    _, status = os.waitpid(child, 0)
    if status != 0:
        raise ChildProcessError("a child ended with status %d" % status)


def in_child(work):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            sys.stdout.flush()
            os._exit(status)
    return child


def passing(connection):
    """To another process and back, after each stage."""
    ours, theirs = socket.socketpair()

    def hold(channel, connection):
        while True:
            if connection is None:
                _, fds, _, _ = socket.recv_fds(channel, 1, 1)
                if not fds:
                    return
                connection = socket.socket(fileno=fds[0])
            more = echo(connection, STAGE)
            if more:
                socket.send_fds(channel, [b"c"], [connection.fileno()])
            connection.close()
            connection = None
            if not more:
                channel.close()
                return

    def other():
        ours.close()
        connection.close()
        hold(theirs, None)

    child = in_child(other)
    theirs.close()
    hold(ours, connection)
    ours.close()
    wait_for(child)


def turns(connection):
    """A child serves each second stage while its parent waits."""
    more = True
    while more and echo(connection, STAGE):
        read_end, write_end = os.pipe()
        child = in_child(lambda write_end=write_end: os.write(write_end, b"%d" % echo(connection, STAGE)))
        os.close(write_end)
        more = os.read(read_end, 1) == b"1"
        os.close(read_end)
        wait_for(child)


def at_once(connection):
    """Parent and child wait for messages of one connection; either of them gets each."""
    echo(connection, STAGE)
    child = in_child(lambda: echo(connection))
    echo(connection)
    wait_for(child)


def bystanders(connection):
    """Other programs are executed meanwhile, which inherit the connection and do not use it."""
    os.set_inheritable(connection.fileno(), True)
    while echo(connection, STAGE):
        os.system("true")
        subprocess.run(["sh", "-c", "exit 0"], close_fds=False, check=True)


def executed(connection):
    """The program executes itself after each stage, and goes on with the same descriptor."""
    if echo(connection, STAGE):
        os.set_inheritable(connection.fileno(), True)
        os.execv(sys.executable, [sys.executable, __file__, "resume", str(connection.fileno())])


def killed(connection):
    """It is killed with bytes in flight."""
    echo(connection, STAGE)
    for _ in range(LAST_WORDS // 1000):
        connection.sendall(b"w" * 1000)
    os.kill(os.getpid(), signal.SIGKILL)


def client_plain(connection):
    for first in range(0, MESSAGES, STAGE):
        ask(connection, first, STAGE)
    finish(connection)


def client_fork(connection):
    """Parent and child ask in turns."""
    for first in range(0, MESSAGES, 2 * STAGE):
        ask(connection, first, STAGE)
        wait_for(in_child(lambda first=first: ask(connection, first + STAGE, STAGE)))
    finish(connection)


def client_exec(connection, first=0):
    ask(connection, first, STAGE)
    if first + STAGE == MESSAGES:
        finish(connection)
        return
    os.set_inheritable(connection.fileno(), True)
    os.execv(sys.executable, [sys.executable, __file__, "ask", str(connection.fileno()), str(first + STAGE)])


def client_killed(connection):
    ask(connection, 0, STAGE)
    received = 0
    while data := connection.recv(65536):
        if data != b"w" * len(data):
            raise ValueError("other bytes")
        received += len(data)
    if received != LAST_WORDS:
        raise ValueError("%d of %d bytes were received" % (received, LAST_WORDS))


SERVERS = {"echo": echo, "passing": passing, "turns": turns, "at-once": at_once, "bystanders": bystanders,
           "executed": executed, "killed": killed}
CLIENTS = {"plain": client_plain, "fork": client_fork, "exec": client_exec, "killed": client_killed}


def serve(what, address):
    """A process for each connection."""
    listener = socket.create_server(address, backlog=16)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while True:
        connection, _ = listener.accept()

        def work():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            listener.close()
            SERVERS[what](connection)
            connection.close()

        child = in_child(work)
        connection.close()
        _, status = os.waitpid(child, 0)
        if status != (signal.SIGKILL if what == "killed" else 0):
            print("a connection's process ended with status %d" % status, file=sys.stderr, flush=True)


def clients(what, address):
    for _ in range(CONNECTIONS):
        def work():
            with socket.create_connection(address) as connection:
                CLIENTS[what](connection)
        wait_for(in_child(work))
    print("%d connections" % CONNECTIONS)


def main():
    what = sys.argv[1]
    if what == "server":
        serve(sys.argv[2], (sys.argv[3], int(sys.argv[4])))
    elif what == "client":
        clients(sys.argv[2], (sys.argv[3], int(sys.argv[4])))
    elif what == "resume":
        executed(socket.socket(fileno=int(sys.argv[2])))
    elif what == "ask":
        client_exec(socket.socket(fileno=int(sys.argv[2])), int(sys.argv[3]))


if __name__ == "__main__":
    main()
else:
    from harness import case

    def run(trial, server_does, client_does):
        server = trial.serve([sys.executable, __file__, "server", server_does, trial.address, trial.port], label="server")
        client = trial.run([sys.executable, __file__, "client", client_does, trial.address, trial.port], label="client")
        trial.expect(client.text() == "%d connections\n" % CONNECTIONS, client.text)
        trial.expect(server.errors() == "", server.errors)
        trial.records_expected = server_does != "killed"
        trial.expect_upgraded(CONNECTIONS, one_end=server_does == "killed")
        trial.stop(server)

    @case("processes", "the server passes the connection to another process and back (SCM_RIGHTS), repeatedly", [])
    def server_passing(trial):
        run(trial, "passing", "plain")

    @case("processes", "the server's parent and child use the connection in turns", [])
    def server_turns(trial):
        run(trial, "turns", "plain")

    @case("processes", "the server's parent and child read from the connection at once", [])
    def server_at_once(trial):
        run(trial, "at-once", "plain")

    @case("processes", "the server executes other programs, which inherit the connection", [])
    def server_bystanders(trial):
        run(trial, "bystanders", "plain")

    @case("processes", "the server executes itself and goes on, repeatedly", [])
    def server_executed(trial):
        run(trial, "executed", "plain")

    @case("processes", "the server is killed with bytes in flight, which arrive", [])
    def server_killed(trial):
        run(trial, "killed", "killed")

    @case("processes", "the client's parent and child use the connection in turns", [])
    def client_forks(trial):
        run(trial, "echo", "fork")

    @case("processes", "the client executes itself and goes on, repeatedly", [])
    def client_executes(trial):
        run(trial, "echo", "exec")

    @case("processes", "both ends execute themselves and go on", [])
    def both_execute(trial):
        run(trial, "executed", "exec")

    @case("processes", "both ends fork, and parents and children use the connection in turns", [])
    def both_fork(trial):
        run(trial, "turns", "fork")
