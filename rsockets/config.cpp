// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "rsockets/config.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include <sched.h>

#include "rsockets/log.hpp"

#ifndef RSOCKET_CONFIG_DIR // set by the build
#define RSOCKET_CONFIG_DIR "/etc/rdma/rsocket"
#endif

namespace rsockets {

namespace {

struct Value {
    const char* file;
    const char* variable;
    size_t Config::*member;
    size_t min;
    size_t max;
};

constexpr size_t smallest_buffer = 4096; // as of SO_SNDBUF
constexpr size_t largest_buffer = size_t{1} << 30;

constexpr std::array values{
    Value{"mem_default", "RS_MEM_DEFAULT", &Config::recv_buffer, 0, largest_buffer},
    Value{"wmem_default", "RS_WMEM_DEFAULT", &Config::send_buffer, 0, largest_buffer},
    Value{"sqsize_default", "RS_SQSIZE_DEFAULT", &Config::send_queue, 1, 65535},
    Value{"rqsize_default", "RS_RQSIZE_DEFAULT", &Config::recv_queue, 1, 65535},
    Value{"inline_default", "RS_INLINE_DEFAULT", &Config::inline_size, 0, 65535},
    Value{"iomap_size", "RS_IOMAP_SIZE", &Config::iomap_size, 0, 4096},
    Value{"polling_time", "RS_POLLING_TIME", &Config::polling_time, 0, 1000000},
    Value{"wake_up_interval", "RS_WAKE_UP_INTERVAL", &Config::wake_up, 0, 86400000},
};

// An integer, with nothing but blanks around it.
std::optional<size_t> parse(const char* text) {
    while (isspace(static_cast<unsigned char>(*text)) != 0) {
        ++text;
    }
    if (isdigit(static_cast<unsigned char>(*text)) == 0) {
        return std::nullopt;
    }
    errno = 0;
    char* end = nullptr;
    const unsigned long long value = strtoull(text, &end, 10);
    while (isspace(static_cast<unsigned char>(*end)) != 0) {
        ++end;
    }
    return errno != 0 || *end != '\0' ? std::nullopt : std::optional<size_t>(value);
}

void apply(Config& config, const Value& value, const char* text, const char* source) {
    const auto number = parse(text);
    if (!number || *number < value.min || *number > value.max) {
        log(Level::warn, "%s is not an integer in %zu..%zu: ignored", source, value.min, value.max);
        return;
    }
    const bool is_buffer = value.max == largest_buffer;
    config.*value.member = is_buffer && *number != 0 ? std::max(*number, smallest_buffer) : *number;
}

bool one_core() {
    cpu_set_t cores;
    return sched_getaffinity(0, sizeof(cores), &cores) == 0 && CPU_COUNT(&cores) < 2;
}

} // namespace

Config Config::load() {
    Config config;
    if (one_core()) {
        config.polling_time = 0; // the thread that we wait for needs the CPU
    }
    const char* named = getenv("RS_CONFIG_DIR");
    const std::string folder = named != nullptr ? named : RSOCKET_CONFIG_DIR;
    struct Close {
        void operator()(FILE* f) const { fclose(f); }
    };
    for (const Value& value : values) {
        const std::string path = folder + "/" + value.file;
        if (const std::unique_ptr<FILE, Close> file(fopen(path.c_str(), "re")); file) {
            std::array<char, 64> text{};
            text[fread(text.data(), 1, text.size() - 1, file.get())] = '\0';
            apply(config, value, text.data(), path.c_str());
        }
        if (const char* text = getenv(value.variable); text != nullptr) {
            apply(config, value, text, value.variable);
        }
    }
    return config;
}

} // namespace rsockets
