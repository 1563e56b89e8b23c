// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Reads the command line.
#include "preload/test/torture_parts/options.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

#include <arpa/inet.h>
#include <unistd.h>

namespace torture {

namespace {

uint32_t parse_actions(const char* list) {
    uint32_t result = 1U << drive_action;
    for (uint32_t i = 0; i < actions; ++i) {
        result |= strstr(list, action_names[i]) != nullptr ? 1U << i : 0;
    }
    return result;
}

// Of connections: at most half of what there is room for.
uint32_t number_of(const char* value) {
    return static_cast<uint32_t>(std::min(std::max(atoi(value), 1), static_cast<int>(max_ends / 4)));
}

} // namespace

std::optional<Options> parse_options(int argc, char** argv) {
    Options options;
    options.seed = static_cast<uint64_t>(time(nullptr)) ^ static_cast<uint64_t>(getpid()) << 32;
    for (int i = 1; i < argc; ++i) {
        const std::string option = argv[i];
        const char* value = i + 1 < argc ? argv[i + 1] : "";
        if (option == "--keep") {
            options.keep_hang = true;
            continue;
        }
        if (option == "--disturbed") {
            options.disturbed = true;
            continue;
        }
        if (option == "--kill-side") {
            options.kill_side = true;
            continue;
        }
        if (option == "--bytes") {
            options.bytes = strtoull(value, nullptr, 10);
        } else if (option == "--seed") {
            options.seed = strtoull(value, nullptr, 10);
        } else if (option == "--connections") {
            options.connections = number_of(value);
        } else if (option == "--rounds") {
            options.rounds = static_cast<uint32_t>(std::max(atoi(value), 1));
        } else if (option == "--seconds") {
            options.seconds = atoi(value);
        } else if (option == "--patience") {
            options.patience_s = atoi(value);
        } else if (option == "--pace") {
            options.pace_ms = static_cast<uint32_t>(atoi(value));
        } else if (option == "--warm-up") {
            options.warm_up_ms = strtoull(value, nullptr, 10);
        } else if (option == "--listen") {
            if (inet_pton(AF_INET, value, &options.listen) != 1) {
                fprintf(stderr, "torture: --listen %s: that is no IPv4 address\n", value);
                return std::nullopt;
            }
        } else if (option == "--actions") {
            options.allowed = parse_actions(value);
        } else {
            fprintf(stderr, "torture: what is %s? The file's header lists the options.\n", argv[i]);
            return std::nullopt;
        }
        ++i;
    }
    if (options.kill_side && (options.disturbed || options.allowed != 1U << drive_action)) {
        fprintf(stderr, "torture: --kill-side is for --actions drive, without --disturbed\n");
        return std::nullopt;
    }
    if (options.disturbed || options.kill_side) {
        options.rounds = 1;
    }
    return options;
}

} // namespace torture
