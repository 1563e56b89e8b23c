// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// rstream: measures the speed of streams. See man/rstream.1.md.
#include "util/rstream/exchange.hpp"

int main(int argc, char** argv) {
    return streaming::run_program(streaming::Program::rstream, argc, argv, rstream::make_exchange);
}
