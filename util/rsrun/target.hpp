// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The program to run: where it is, and whether a preloaded library can act in it.
#pragma once

#include <string>

namespace rsrun {

// As a shell has it: 126 for what cannot be run, 127 for what is not there.
struct NoProgram {
    int status;
    std::string why;
};

// Where the program of this name is, as execvp looks for it. Throws NoProgram.
std::string find_program(const std::string& name, const char* path);

struct Target {
    // Why the sockets of the program stay with the kernel whatever is set; empty if they need not.
    std::string untouched;
    // False where the dynamic linker would complain about the library, or break the program with it.
    bool preload = true;
};

// Reads its file, or that of its interpreter if it is a script.
Target look_at(const std::string& path);

} // namespace rsrun
