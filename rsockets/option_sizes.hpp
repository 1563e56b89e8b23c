// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The members that hold the sizes of option_table.hpp: those for the next connection, and those that the core granted.
#pragma once

#include "rsockets/config.hpp"
#include "rsockets/connection.hpp"
#include "rsockets/option_table.hpp"

namespace rsockets {

// Null if the option is not at Place::size.
constexpr size_t Config::*configured(const Option& option) {
    switch (option.size) {
    case Option::Size::none:
        break;
    case Option::Size::send_buffer:
        return &Config::send_buffer;
    case Option::Size::recv_buffer:
        return &Config::recv_buffer;
    case Option::Size::send_queue:
        return &Config::send_queue;
    case Option::Size::recv_queue:
        return &Config::recv_queue;
    case Option::Size::inline_size:
        return &Config::inline_size;
    case Option::Size::maps:
        return &Config::iomap_size;
    }
    return nullptr;
}

// Null if the core does not report it.
constexpr size_t Sizes::*left_by_core(const Option& option) {
    switch (option.size) {
    case Option::Size::none:
    case Option::Size::inline_size:
        break;
    case Option::Size::send_buffer:
        return &Sizes::send_buffer;
    case Option::Size::recv_buffer:
        return &Sizes::recv_buffer;
    case Option::Size::send_queue:
        return &Sizes::send_queue;
    case Option::Size::recv_queue:
        return &Sizes::recv_queue;
    case Option::Size::maps:
        return &Sizes::maps;
    }
    return nullptr;
}

} // namespace rsockets
