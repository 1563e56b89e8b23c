// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What an end sends by TCP, behind an urgent byte, after the fabric has failed: how much it has written and read. See
// connection/stream_recovery.cpp, and doc/fabric-protocol.md.
#pragma once

#include <cstdint>

namespace preload::path {

struct Record {
    static constexpr uint64_t expected_magic = 0x64726365'52737372; // "rssRecrd"
    static constexpr uint8_t mark = 0xb3;                           // the urgent byte in front of it
    uint64_t magic = expected_magic;
    uint64_t head = 0; // of the ring that the sender writes
    uint64_t tail = 0; // of the ring that it reads
    uint32_t epoch = 0;
    uint32_t followed = 0;
    uint32_t resumed = 0; // the epoch is even, and all in front of it is in the far segment
    uint32_t reserved = 0;
};

} // namespace preload::path
