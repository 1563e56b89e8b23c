// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// rsstat against whatever a process can write: the first byte chooses what the rest is.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>

#include "util/rsstat/formats.hpp"
#include "util/rsstat/page.hpp"
#include "util/rsstat/process.hpp"
#include "util/rsstat/reasons.hpp"
#include "util/rsstat/segments.hpp"
#include "util/rsstat/table.hpp"

namespace {

void fuzz_page(const uint8_t* data, size_t size, bool named) {
    void* memory = ::operator new (base::stats::header_bytes + size, std::align_val_t{64});
    const size_t all = base::stats::header_bytes + size / 2;
    memset(memory, 0, base::stats::header_bytes);
    memcpy(memory, data, size / 2 < base::stats::header_bytes ? size / 2 : base::stats::header_bytes);
    memcpy(static_cast<char*>(memory) + base::stats::header_bytes, data + size / 2, size / 2);
    if (named) {
        auto& header = *static_cast<base::stats::Header*>(memory);
        header.magic = base::stats::magic;
        header.version = base::stats::version;
        header.library = size % 2 == 0 ? base::stats::Library::preload : base::stats::Library::sockets;
        header.row_bytes = static_cast<uint32_t>(base::stats::row_bytes_of(header.library));
    }
    if (auto page = rsstat::read_page(memory, all); page) {
        rsstat::Snapshot snapshot;
        rsstat::ProcessView process;
        for (const auto& socket : page->sockets) {
            process.sockets.push_back({socket, {"-", "-", 0, 0}});
        }
        process.page = *page;
        snapshot.processes.push_back(process);
        (void)sockets_text(snapshot, nullptr);
        (void)processes_text(snapshot, &snapshot);
        (void)reasons_text(snapshot);
        (void)json_text(snapshot, &snapshot);
        (void)prometheus_text(snapshot);
    }
    ::operator delete (memory, std::align_val_t{64});
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size == 0) {
        return 0;
    }
    const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
    switch (data[0] % 5) {
    case 0:
        (void)rsstat::parse_segment(text);
        break;
    case 1:
        (void)rsstat::parse_tcp_line(text);
        break;
    case 2:
        (void)rsstat::printable(text);
        break;
    default:
        fuzz_page(data + 1, size - 1, data[0] % 5 == 3);
        break;
    }
    return 0;
}
