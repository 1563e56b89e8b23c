// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// riostream: measures the speed of writes to memory of the peer. See man/riostream.1.md.
#include "util/riostream/exchange.hpp"

int main(int argc, char** argv) {
    return streaming::run_program(streaming::Program::riostream, argc, argv, riostream::make_exchange);
}
