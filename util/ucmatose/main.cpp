// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// ucmatose: tests whether many concurrent connections are established, carry messages, and end. See man/ucmatose.1.md.
#include "util/common/failure.hpp"
#include "util/ucmatose/test.hpp"

int main(int argc, char** argv) {
    const std::string program = util::program_name(argv[0]);
    return util::run(program.c_str(), [&] {
        const ucmatose::Options options = ucmatose::parse_options({argv, argv + argc});
        if (options.common.help) {
            fmt::print("{}", ucmatose::help_text(program));
            return 0;
        }
        if (options.common.version) {
            fmt::print("ucmatose of rstream {}\n", PACKAGE_VERSION);
            return 0;
        }
        return ucmatose::Test(options).run();
    });
}
