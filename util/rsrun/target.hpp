// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The program to run: its path, and whether a preloaded library works in it.
#pragma once

#include <string>

namespace rsrun {

// Exit statuses as in a shell: 126 for a program that cannot be run, 127 for one that does not exist.
struct NoProgram {
    int status;
    std::string why;
};

// The path of the program of this name, found as by execvp. Throws NoProgram.
std::string find_program(const std::string& name, const char* path);

struct Target {
    // Why the sockets of the program stay with the kernel whatever the settings; empty if there is no such reason.
    std::string untouched;
    // False if the dynamic linker would report an error for the library, or the program would fail with it.
    bool preload = true;
};

// Inspects the program's file, or that of its interpreter if it is a script.
Target inspect(const std::string& path);

} // namespace rsrun
