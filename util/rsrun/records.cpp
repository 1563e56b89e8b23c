// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/rsrun/records.hpp"

#include <array>
#include <sstream>

#include <fmt/format.h>

namespace rsrun {

namespace {

enum Column {
    pid,
    program,
    descriptor,
    role,
    local,
    peer,
    path,
    upgrades,
    returns,
    upgraded_ms,
    sent,
    received,
    reason,
    columns
};

using Record = std::vector<std::string>;

std::vector<std::string> split(const std::string& line) {
    std::vector<std::string> words;
    std::istringstream stream(line);
    for (std::string word; std::getline(stream, word, '\t');) {
        words.push_back(word);
    }
    return words;
}

bool is_count(const std::string& word) {
    return !word.empty() && word.find_first_not_of("0123456789") == std::string::npos;
}

bool is_record(const Record& record) {
    if (record.size() != columns || record[path].empty() ||
        (record[role] != "connect" && record[role] != "accept" && record[role] != "listen")) {
        return false;
    }
    for (const Column column : {upgrades, returns, upgraded_ms, sent, received}) {
        if (record[column] != "-" && !is_count(record[column])) {
            return false;
        }
    }
    return true;
}

bool has_count(const Record& record, Column column) { return record[column] != "-" && record[column] != "0"; }

bool is_upgraded(const Record& record) {
    return (record[path] != "kernel" && record[path] != "-") || has_count(record, upgrades);
}

std::string times(const std::string& count) {
    return count == "1" ? "once" : count == "2" ? "twice" : count + " times";
}

std::string describe_path(const Record& record) {
    std::string text;
    if (record[path] == "shm" || record[path] == "fabric") {
        text = record[path] == "shm" ? "shared memory" : "the fabric";
        if (record[upgraded_ms] != "-") {
            text += fmt::format(" since {} ms", record[upgraded_ms]);
        }
    } else if (record[path] == "kernel") {
        text = "kernel TCP";
    } else if (record[path] == "-") {
        text = "no path";
    } else {
        text = fmt::format("the fabric ({})", record[path]);
    }
    const std::string why = record[reason] == "-" ? "" : record[reason];
    if (has_count(record, returns)) {
        text += fmt::format(" (returned to the kernel {}{})", times(record[returns]), why.empty() ? "" : ": " + why);
    } else if (!why.empty()) {
        text += fmt::format(" ({})", why);
    }
    return text;
}

std::string describe(const Record& record) {
    std::string text = fmt::format("{}[{}] socket {} ", record[program], record[pid], record[descriptor]);
    if (record[role] == "listen") {
        text += fmt::format("listens on {}", record[local]);
        // Listeners always stay with the kernel, even if their connections are upgraded: report nothing.
        return record[path] == "kernel" && record[reason] == "-" ? text : text + ": " + describe_path(record);
    }
    text += record[role] == "accept" ? fmt::format("accepted at {} from {}", record[local], record[peer])
                                     : fmt::format("connected to {} from {}", record[peer], record[local]);
    text += ": " + describe_path(record);
    if (record[sent] != "-" && record[received] != "-") {
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
        if (!is_record(record)) {
            ++records.damaged;
            continue;
        }
        records.upgraded += is_upgraded(record) ? 1 : 0;
        records.lines.push_back(describe(record));
    }
    return records;
}

std::string explanation(const Records& records) {
    std::string text;
    for (const std::string& line : records.lines) {
        text += line + "\n";
    }
    text += fmt::format("{} sockets, {} upgraded\n", records.lines.size(), records.upgraded);
    if (records.damaged != 0) {
        text += fmt::format("{} records could not be read\n", records.damaged);
    }
    return text;
}

} // namespace rsrun
