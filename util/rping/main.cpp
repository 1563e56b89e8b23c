// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// rping: tests whether a connection can be established and moves data by RDMA. See man/rping.1.md.
#include "util/common/failure.hpp"
#include "util/rping/client.hpp"
#include "util/rping/server.hpp"

int main(int argc, char** argv) {
    const std::string program = util::program_name(argv[0]);
    return util::run(program.c_str(), [&] {
        const rping::Options options = rping::parse_options({argv, argv + argc});
        if (options.common.help) {
            fmt::print("{}", rping::help_text(program));
            return 0;
        }
        if (options.common.version) {
            fmt::print("rping of rstream {}\n", PACKAGE_VERSION);
            return 0;
        }
        return options.server ? rping::run_server(options) : rping::run_client(options);
    });
}
