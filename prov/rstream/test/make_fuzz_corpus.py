#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""Writes the seeds of wire_fuzz into fuzz_corpus/ beside this script. Run it by hand when the format changes."""
import pathlib
import struct

folder = pathlib.Path(__file__).parent / "fuzz_corpus"
folder.mkdir(exist_ok=True)


def hello(ring=8192, credits=64, control=16, user=0, features=0):
    return struct.pack("<4sBBHQQQIBBH", b"MSTr", 1, features, credits, 1, 2, 3, ring, control, user, 0)


def script(modes, *steps, ring=4096, credits=60, peer=hello()):
    return struct.pack("<BHHB", modes, 4096, ring, credits) + peer + b"".join(steps)


def data(length, more=0):
    return struct.pack("<BHB", 2, length, more)


def control(step, consumed=0, how=0x0A, kind=b""):
    return bytes([step]) + kind + bytes([how]) + (b"" if how & 1 else bytes([consumed]))


def stage(length):
    return struct.pack("<BH", 7, length)


post, undo, drain = b"\x09", b"\x0a", b"\x0d"
credit = control(4, how=0x0B)
header = control(5, how=0x0B) + struct.pack("<HB", 100, 0)
fin = control(6, how=0x0B, kind=b"\x01")
reset = control(6, how=0x0B, kind=b"\x02")
release = struct.pack("<BH", 14, 65535)
bypass = struct.pack("<BHB", 11, 40, 1)
announce, unmap, unmapped = (bytes([16, how]) for how in (99, 100, 101))
maps, take_back = bytes([17, 2]), bytes([18, 2])
grow = control(6, how=0x0B, kind=b"\x04")
offer = control(6, how=0x0B, kind=b"\x05") + struct.pack("<I", 65536)
smaller = control(6, how=0x0B, kind=b"\x05") + struct.pack("<I", 8192)
move = control(6, how=0x0B, kind=b"\x06")
supply = struct.pack("<BH", 21, 9000)
settle = b"\x16"
move_staging = struct.pack("<BH", 23, 9000)
ours = [bytes([15, how]) for how in range(5)]

seeds = {
    "hello": hello(user=4) + b"user",
    "reject": struct.pack("<4sBBBB", b"MSTr", 1, 2, 4, 0) + b"user",
    "data": script(0, data(1000), data(7000, 2), drain, post, data(4000)),
    "stream": script(0, *[stage(3000) + post + post + credit + release + data(1500) + drain + post] * 8),
    "headers": script(1, *[stage(3000) + post + post + release + header + drain] * 8),
    "small": script(0, *[struct.pack("<BB", 8, 10) + post] * 20, undo, credit, post, bypass, bypass),
    "ends": script(0, stage(500), ours[0], post, post, fin, data(1), credit, ours[1], post, post),
    "resets": script(0, stage(500), ours[3], post, post, post, reset),
    "early": script(2, credit, stage(100), post, ours[4], post),
    "maps": script(4, announce + b"\x01", *[struct.pack("<BHB", 19, 50, 1) + post] * 3, unmap + b"\x01", post,
                   announce + b"\x02", stage(100), struct.pack("<BHB", 19, 50, 2), post, unmap + b"\x02", post, post,
                   struct.pack("<BBB", 20, 10, 1), release),
    "own_maps": script(4, *[maps + post] * 6, take_back + b"\x00", post, unmapped + b"\x00", take_back + b"\x00", maps,
                       post, credit),
    "grows": script(8, data(4000), grow, drain, supply, post, move, data(6000), drain, settle, grow),
    "asks": script(0, *[stage(4096) + post + post + release + credit] * 20, post, offer, post, post, move_staging,
                   stage(6000), post, release, move_staging, peer=hello(ring=4096, features=16)),
    "shrinks": script(8, data(4000), grow, drain, supply, post, move, data(6000), drain, settle, supply, post, move,
                      data(3000), drain, settle, data(4096), drain, peer=hello(features=80)),
    "asked_to_shrink": script(0, smaller, stage(3000), post, post, credit, release, post,
                              peer=hello(ring=65536, features=80)),
    "flood": script(0, *[credit] * 17),
}
for name, content in seeds.items():
    (folder / name).write_bytes(content)
