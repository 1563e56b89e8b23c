// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Where the sizes of option_table.hpp are: in what the next connection is made with, and in what the core left of them.
#pragma once

#include "rsockets/config.hpp"
#include "rsockets/connection.hpp"
#include "rsockets/option_table.hpp"

namespace rsockets {

// None if the option is not at Place::size.
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

// None if the core is not asked for it.
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
