#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""Prints the tables of scale.md. Every input is an option: --help lists them with their defaults."""

import argparse
import time

# Name, default, where it comes from.
INPUTS = (
    ("link", 100.0, "Gbit/s of the link (assumed)"),
    ("hosts", 10000, "hosts, each connected with each other by --per-pair streams (assumed)"),
    ("per-pair", 1, "streams for each pair of hosts (assumed)"),
    ("copy", 22.0, "GB/s of a copy that stays in a core's cache (measured: --measure, 64 KiB)"),
    ("copy-cold", 1.4, "GB/s of a copy in memory (measured: --measure, 64 MiB)"),
    ("buffer", 32.0, "KiB of one buffer before it grows (FI_RSTREAM_SEND_BUF_SIZE, _RECV_BUF_SIZE)"),
    ("grown", 512.0, "KiB of one buffer at most (FI_RSTREAM_MAX_BUF_SIZE)"),
    ("tx-size", 384, "writes in flight of an endpoint (FI_RSTREAM_TX_SIZE)"),
    ("rx-size", 384, "messages in flight to an endpoint (FI_RSTREAM_RX_SIZE)"),
    ("control", 16, "control messages in flight (wire/limits.hpp)"),
    ("message", 32, "bytes of a control message (wire/control.hpp)"),
    ("plugin", 4.4, "KiB of the plugin's own state for an idle end (measured: fi_stream_footprint, less -p tcp)"),
    ("core", 519.6, "KiB of an endpoint and CQ of the core provider tcp (measured: fi_stream_footprint -p tcp)"),
    ("descriptors", 4, "descriptors of an end (measured: fi_stream_footprint)"),
    ("sq-entry", 128, "bytes of an entry of a send queue (assumed; adapters: 64 to 256)"),
    ("rq-entry", 32, "bytes of an entry of a receive queue (assumed; adapters: 16 to 64)"),
    ("cq-entry", 64, "bytes of an entry of a completion queue (assumed)"),
    ("connect", 0.8, "ms to connect (measured: ucmatose -c 100 --provider tcp on loopback)"),
    ("message-work", 0.2, "us of a core for each write (measured: fabtests/lab/README.md)"),
    ("shared", 16, "streams' worth of receives and completions in a shared queue (assumed)"),
    ("share", 1.0, "percent of the streams that are busy at the same time (assumed)"),
)


def rate(size):
    """GB/s of a copy of that many bytes: the best of several, since other processes only slow it down."""
    target, source = bytearray(size), memoryview(bytearray(size))
    rounds = max(1, (64 << 20) // size)
    best = float("inf")
    for _ in range(15):
        start = time.perf_counter()
        for _ in range(rounds):
            target[:] = source
        best = min(best, (time.perf_counter() - start) / rounds)
    return size / best / 1e9


def table(head, rows):
    print("\n| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")


def link_table(v):
    """What one stream at the rate of the link takes of each end."""
    bytes_per_second = v.link / 8 * 1e9
    rows = []
    for size in (64, 4 << 10, 64 << 10, 256 << 10):
        writes = bytes_per_second / size
        work = writes * v.message_work / 1e6
        rows.append((f"{size} B" if size < 1024 else f"{size >> 10} KiB", f"{writes / 1e6:.3g}", f"{work:.2g}",
                     f"{bytes_per_second / v.copy / 1e9:.2g}", f"{bytes_per_second / v.copy_cold / 1e9:.2g}"))
    table((f"size of a write at {v.link:g} Gbit/s", "million writes/s", "CPUs for the writes", "CPUs for the copy, cached",
           "CPUs for the copy, in memory"), rows)


def queue_entries(v):
    receives = v.control + v.rx_size
    return receives, v.tx_size, receives + v.rx_size + v.tx_size + 2 * v.control


def end_table(v):
    """Memory of one end on verbs, in KiB, and of a host that has a stream to each other one."""
    receives, sends, completions = queue_entries(v)
    messages = (receives + v.control + sends) * v.message / 1024
    queues = ((sends + v.control) * v.sq_entry + receives * v.rq_entry + completions * v.cq_entry) / 1024
    streams = (v.hosts - 1) * v.per_pair
    idle = 2 * v.buffer + messages
    busy = 2 * v.grown + messages
    mixed = idle + (busy - idle) * v.share / 100
    gib = streams / (1 << 20)
    table(("of one end on verbs", "KiB", f"of {streams} ends, GiB"),
          (("buffers as they begin", f"{2 * v.buffer:.0f}", f"{2 * v.buffer * gib:.2f}"),
           ("control messages", f"{messages:.1f}", f"{messages * gib:.2f}"),
           ("pinned by the provider", f"{idle:.0f}", f"{idle * gib:.2f}"),
           (f"the same, {v.share:g} % grown", f"{mixed:.0f}", f"{mixed * gib:.2f}"),
           ("the same, all grown", f"{busy:.0f}", f"{busy * gib:.2f}"),
           ("queues of the QP and its CQ", f"{queues:.0f}", f"{queues * gib:.2f}"),
           ("state of the plugin", f"{v.plugin:.1f}", f"{v.plugin * gib:.2f}"),
           ("beside it: endpoint and CQ of the core provider tcp", f"{v.core:.0f}", f"{v.core * gib:.2f}")))
    shared = v.shared * receives
    table(("of a host with these streams", "each stream its own", "shared"),
          (("QPs", f"{streams}", f"{streams}"),
           ("receives posted", f"{receives * streams}", f"{shared}"),
           ("memory of receives, MiB", f"{receives * streams * (v.message + v.rq_entry) / (1 << 20):.1f}",
            f"{shared * (v.message + v.rq_entry) / (1 << 20):.2f}"),
           ("memory of completion queues, MiB", f"{completions * streams * v.cq_entry / (1 << 20):.0f}",
            f"{completions * v.shared * v.cq_entry / (1 << 20):.2f}"),
           ("descriptors", f"{v.descriptors * streams}", f"{2 * streams + 2}"),
           ("regions registered", f"{3 * streams}", "3"),
           ("seconds to connect, one after the other", f"{streams * v.connect / 1e3:.1f}", f"{streams * v.connect / 1e3:.1f}")))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true", help="measure the copies on this machine first")
    for name, default, origin in INPUTS:
        parser.add_argument("--" + name, type=type(default), default=default, help=f"{origin}; {default}".replace("%", "%%"))
    values = parser.parse_args()
    if values.measure:
        values.copy, values.copy_cold = rate(64 << 10), rate(64 << 20)
        print(f"copies on this machine: {values.copy:.1f} GB/s cached, {values.copy_cold:.1f} GB/s in memory")
    link_table(values)
    end_table(values)


if __name__ == "__main__":
    main()
