# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""memcached: libevent, worker threads that are handed connections. As a program of its own, a client of its text protocol."""

import os
import random
import socket
import sys
import threading

if __name__ != "__main__":
    from harness import case


def values(number):
    """The same at every call: sizes from nothing to near memcached's limit."""
    generator = random.Random(7)
    for i in range(number):
        size = generator.choice((0, 1, 100, 4000, 70000, 900000 if i % 20 == 0 else 10000))
        yield "key-%d" % i, generator.randbytes(size)


def talk(address, port, prefix, number):
    connection = socket.create_connection((address, port))
    stream = connection.makefile("rwb")
    for key, value in values(number):
        stream.write(b"set %s%s 0 0 %d\r\n%s\r\n" % (prefix, key.encode(), len(value), value))
        stream.flush()
        assert stream.readline() == b"STORED\r\n"
    for key, value in values(number):
        stream.write(b"get %s%s\r\n" % (prefix, key.encode()))
        stream.flush()
        head = stream.readline()
        assert head.split() == [b"VALUE", prefix + key.encode(), b"0", b"%d" % len(value)], head
        assert stream.read(len(value) + 2) == value + b"\r\n", key
        assert stream.readline() == b"END\r\n"
    stream.write(b"get none\r\nquit\r\n")
    stream.flush()
    assert stream.read() == b"END\r\n"


def client():
    address, port, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    done = []

    def work(i):
        talk(address, port, b"%d-" % i, number)
        done.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print("%d clients, all values as they were" % len(done))
    sys.exit(0 if len(done) == len(threads) else 1)


if __name__ == "__main__":
    client()
else:

    @case("memcached", "eight clients: values of 0 to 900,000 bytes", ["memcached"])
    def eight_clients(trial):
        user = ["-u", "root"] if os.geteuid() == 0 else []
        server = trial.serve(["memcached", "-l", trial.address, "-p", trial.port, "-U", "0", "-m", "512", *user])
        ran = trial.run([sys.executable, __file__, trial.address, trial.port, 60], label="client")
        trial.expect(ran.text().startswith("8 clients"), ran.text)
        trial.stop(server)
        trial.expect_upgraded(8)
