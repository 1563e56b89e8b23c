# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""Network block devices: nbdkit with libnbd's nbdcopy, and with QEMU, which asks for SO_ZEROCOPY."""

from harness import case

DISK = 64 << 20


def serve(trial, disk):
    return trial.serve(["nbdkit", "-f", "-p", trial.port, "-i", trial.address, "file", disk])


def uri(trial):
    return "nbd://%s:%d" % (trial.address, trial.port)


@case("nbdkit", "nbdcopy of 64 MB there and back", ["nbdkit", "nbdcopy"])
def nbdcopy(trial):
    original = trial.make_file("original", DISK)
    disk = trial.path("disk")
    with open(disk, "wb") as file:
        file.truncate(DISK)
    server = serve(trial, disk)
    trial.run(["nbdcopy", original, uri(trial)])
    trial.run(["nbdcopy", uri(trial), trial.path("copy")])
    trial.stop(server)
    trial.expect_same(original, disk)
    trial.expect_same(original, trial.path("copy"))
    trial.expect_upgraded(2)


@case("nbdkit", "QEMU: a disk of 64 MB converted, written at random places, and read again", ["nbdkit", "qemu-img", "qemu-io"])
def qemu(trial):
    disk = trial.make_file("disk", DISK)
    server = serve(trial, disk)
    trial.run(["qemu-img", "convert", "-f", "raw", "-O", "raw", uri(trial), trial.path("copy")])
    trial.expect_same(disk, trial.path("copy"))
    places = [(i * 7919 * 4096) % (DISK - (1 << 20)) for i in range(trial.scale(200, 40))]
    commands = [part for i, at in enumerate(places)
                for part in ("-c", "write -q -P %d %d %d" % (i % 256, at, 512 << (i % 9)))]
    trial.run(["qemu-io", "-f", "raw", *commands, "-c", "flush", uri(trial)])
    trial.run(["qemu-img", "convert", "-f", "raw", "-O", "raw", uri(trial), trial.path("copy")])
    trial.stop(server)
    trial.expect_same(disk, trial.path("copy"))
    trial.expect_upgraded(2)
