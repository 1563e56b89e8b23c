# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""echo_client.py ADDRESS PORT CLIENTS AT_ONCE MESSAGES BULK: what the servers that fork are tried with.

Each client sends some messages and waits for each of them to come back, then sends and receives BULK bytes at once, shuts its
connection down for writing, and reads to the end. AT_ONCE threads share the clients.
"""

import random
import socket
import sys
import threading
import time

TIMEOUT = 30
FIRST = 20  # messages, with pauses behind them: an upgrade takes the time in which both ends' services meet
PAUSE = 0.003


def receive(connection, size):
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError("the connection ended after %d of %d bytes" % (len(data), size))
        data += part
    return data


def to_end(connection):
    data = bytearray()
    while part := connection.recv(65536):
        data += part
    return data


def talk(address, number, messages, bulk):
    generator = random.Random(number)
    with socket.create_connection(address, TIMEOUT) as connection:
        for i in range(messages):
            message = generator.randbytes(generator.choice((1, 20, 500, 3000)))
            connection.sendall(message)
            if receive(connection, len(message)) != message:
                raise ValueError("message %d came back changed" % i)
            if i < FIRST:
                time.sleep(PAUSE)
        sent = generator.randbytes(bulk)

        def send():
            try:
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # the bytes that are missing tell

        sender = threading.Thread(target=send)
        sender.start()
        received = to_end(connection)
        sender.join()
        if received != sent:
            raise ValueError("%d bytes came back of %d" % (len(received), len(sent)))


def main():
    address = (sys.argv[1], int(sys.argv[2]))
    clients, at_once, messages, bulk = (int(word) for word in sys.argv[3:])
    remaining, done, lock = list(range(clients)), [], threading.Lock()

    def work():
        while True:
            with lock:
                if not remaining:
                    return
                number = remaining.pop()
            try:
                talk(address, number, messages, bulk)
                done.append(number)
            except (OSError, EOFError, ValueError) as error:
                print("client %d: %s" % (number, error))

    threads = [threading.Thread(target=work) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("%d of %d clients had everything back" % (len(done), clients))
    return 0 if len(done) == clients else 1


if __name__ == "__main__":
    sys.exit(main())
else:
    import os

    from harness import HERE

    def echo(trial, clients, at_once, messages, bulk):
        """Runs it against the server of the trial."""
        ran = trial.run([sys.executable, os.path.join(HERE, "echo_client.py"), trial.address, trial.port, clients, at_once,
                         messages, bulk], label="client")
        trial.expect(ran.text() == "%d of %d clients had everything back\n" % (clients, clients), ran.text)
        if messages >= 50:
            trial.expect_upgraded(clients)
