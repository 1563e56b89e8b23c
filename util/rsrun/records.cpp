// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/rsrun/records.hpp"

#include <array>
#include <sstream>

#include <fmt/format.h>

namespace rsrun {

namespace {

enum Column { pid, program, descriptor, role, local, peer, verdict, core, sent, received, reason, columns };

std::vector<std::string> split(const std::string& line) {
    std::vector<std::string> words;
    std::istringstream stream(line);
    for (std::string word; std::getline(stream, word, '\t');) {
        words.push_back(word);
    }
    return words;
}

std::string describe(const std::vector<std::string>& record) {
    std::string text = fmt::format("{}[{}] socket {} ", record[program], record[pid], record[descriptor]);
    if (record[role] == "listen") {
        text += fmt::format("listens on {}", record[local]);
    } else if (record[role] == "accept") {
        text += fmt::format("accepted at {} from {}", record[local], record[peer]);
    } else {
        text += fmt::format("connected to {} from {}", record[peer], record[local]);
    }
    text += record[verdict] == "carried" ? fmt::format(": carried by {}", record[core]) : ": kernel TCP";
    if (record[reason] != "-") {
        text += fmt::format(" ({})", record[reason]);
    }
    if (record[sent] != "-" && record[received] != "-" && record[role] != "listen") {
        text += fmt::format(", {} bytes sent, {} received", record[sent], record[received]);
    }
    return text;
}

} // namespace

Records read_records(const std::string& text) {
    Records records;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) {
        const auto record = split(line);
        if (record.size() != columns || (record[verdict] != "carried" && record[verdict] != "kernel")) {
            ++records.damaged;
            continue;
        }
        records.carried += record[verdict] == "carried" ? 1 : 0;
        records.lines.push_back(describe(record));
    }
    return records;
}

std::string explanation(const Records& records) {
    std::string text;
    for (const std::string& line : records.lines) {
        text += line + "\n";
    }
    text += fmt::format("{} sockets, {} carried\n", records.lines.size(), records.carried);
    if (records.damaged != 0) {
        text += fmt::format("{} lines could not be read\n", records.damaged);
    }
    return text;
}

} // namespace rsrun
