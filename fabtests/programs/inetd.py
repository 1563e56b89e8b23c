# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""Servers in inetd's way: accept, fork, the connection becomes the standard input, output and error, exec. Or in
systemd's (sd_listen_fds(3), Accept=yes): it becomes descriptor 3.

As a program of its own, `inetd.py ADDRESS PORT NUMBER PROGRAM ARGUMENT...`, such a server: of 0, or of 3.
"""

import os
import signal
import socket
import sys

ECHO = "import os\nwhile data := os.read(0, 65536):\n    while data:\n        data = data[os.write(1, data):]"


def hand_over(connection, number):
    if number == 0:
        for standard in (0, 1, 2):
            os.dup2(connection.fileno(), standard)
        connection.close()
        return
    os.environ.update(LISTEN_FDS="1", LISTEN_PID=str(os.getpid()))
    if connection.fileno() == number:
        connection.set_inheritable(True)
    else:
        os.dup2(connection.fileno(), number)
        connection.close()


def serve():
    listener = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if listener.fileno() == 3:
        listener = socket.socket(fileno=os.dup(listener.detach()))
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            hand_over(connection, int(sys.argv[3]))
            listener.close()
            os.execvp(sys.argv[4], sys.argv[4:])
        connection.close()


if __name__ == "__main__":
    serve()
else:
    import echo_client
    from harness import case

    RAW = {"RSPRELOAD_STDIO": "unused"}  # of the programs that are executed

    def superserver(trial, *program, number=0, environment=None):
        return trial.serve([sys.executable, __file__, trial.address, trial.port, number, *program], label="server",
                           environment=environment)

    @case("inetd", "a superserver that executes cat, 40 clients", [])
    def cat(trial):
        server = superserver(trial, "cat", environment=RAW)
        echo_client.echo(trial, 40, 4, 300, 300000)
        trial.stop(server)

    @case("inetd", "a superserver that executes python with os.read and os.write, 8 clients", ["python3"])
    def python(trial):
        server = superserver(trial, sys.executable, "-c", ECHO, environment=RAW)
        echo_client.echo(trial, 8, 4, 300, 300000)
        trial.stop(server)

    @case("inetd", "a superserver in systemd's way (descriptor 3) that executes python, 8 clients", ["python3"])
    def systemd(trial):
        code = ("import os, socket\n"
                "assert os.environ['LISTEN_FDS'] == '1' and os.environ['LISTEN_PID'] == str(os.getpid())\n"
                "connection = socket.socket(fileno=3)\n"
                "while data := connection.recv(65536):\n"
                "    connection.sendall(data)\n")
        server = superserver(trial, sys.executable, "-c", code, number=3)
        echo_client.echo(trial, 8, 4, 300, 300000)
        trial.stop(server)

    @case("inetd", "a superserver that executes sh, which runs two programs one after another", [],
          open="connections on standard input and output stay with the kernel, since stdio may use them")
    def shell(trial):
        # The shell reads a byte at a time, as it may not take what is for cat.
        server = superserver(trial, "sh", "-c", 'read line; echo "$line" | tr a-z A-Z; cat')
        code = ("import socket, sys\n"
                "for i in range(4):\n"
                "    with socket.create_connection((sys.argv[1], int(sys.argv[2])), 30) as connection:\n"
                "        stream = connection.makefile('rwb')\n"
                "        stream.write(b'a line\\n')\n"
                "        stream.flush()\n"
                "        assert stream.readline() == b'A LINE\\n'\n"
                "        for number in range(200):\n"
                "            stream.write(b'message %d\\n' % number)\n"
                "            stream.flush()\n"
                "            assert stream.readline() == b'message %d\\n' % number\n"
                "        connection.shutdown(socket.SHUT_WR)\n"
                "        assert stream.read() == b''\n"
                "print('as it should be')\n")
        ran = trial.run([sys.executable, "-c", code, trial.address, trial.port], label="client")
        trial.expect(ran.text() == "as it should be\n", ran.text)
        trial.expect_upgraded(4)
        trial.stop(server)

    @case("inetd", "socat with fork and EXEC:cat, the connection itself (nofork), 40 clients", ["socat"])
    def socat_nofork(trial):
        server = trial.serve(["socat", "TCP-LISTEN:%d,bind=%s,reuseaddr,fork" % (trial.port, trial.address),
                              "EXEC:cat,nofork"], label="server", environment=RAW)
        echo_client.echo(trial, 40, 4, 300, 300000)
        trial.stop(server, status=143)
