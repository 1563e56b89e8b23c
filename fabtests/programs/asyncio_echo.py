# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""python's asyncio: epoll, ioctl(FIONBIO). As a program of its own, an echo server and its client."""

import asyncio
import random
import signal
import sys

if __name__ != "__main__":
    from harness import case

CLIENTS = 50


async def server(address, port):
    async def echo(reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()

    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with await asyncio.start_server(echo, address, port):
        await ended.wait()


async def talk(address, port, number):
    reader, writer = await asyncio.open_connection(address, port)
    sent = random.Random(number).randbytes(200000 + number)

    async def send():
        writer.write(sent)
        await writer.drain()
        writer.write_eof()

    _, received = await asyncio.gather(send(), reader.read())
    writer.close()
    await writer.wait_closed()
    return sent == received


async def client(address, port):
    same = await asyncio.gather(*(talk(address, port, number) for number in range(CLIENTS)))
    print("%d of %d came back as they were" % (sum(same), CLIENTS))


if __name__ == "__main__":
    asyncio.run((server if sys.argv[1] == "server" else client)(sys.argv[2], int(sys.argv[3])))
else:

    @case("python asyncio", "an echo server with 50 clients, half close", [])
    def echo_server(trial):
        echo = trial.serve([sys.executable, __file__, "server", trial.address, trial.port], label="server")
        ran = trial.run([sys.executable, __file__, "client", trial.address, trial.port], label="client")
        trial.expect(ran.text() == "%d of %d came back as they were\n" % (CLIENTS, CLIENTS), ran.text)
        trial.stop(echo)
