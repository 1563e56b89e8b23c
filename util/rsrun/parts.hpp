// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The libraries that a program is given: of the build tree that rsrun is in, or of its installation, which may be
// staged in a folder (DESTDIR).
#pragma once

#include <string>

namespace rsrun {

struct Parts {
    std::string shim;            // the preload library
    std::string library;         // the socket library
    std::string provider_folder; // that of the plugin
};

// Where rsrun itself is: its folder, without links.
std::string own_folder();

// folder is that of rsrun. provider_path is FI_PROVIDER_PATH or empty: the plugin may be in one of its folders instead.
// A Failure names the part that is missing.
Parts find_parts(const std::string& folder, const std::string& provider_path);

} // namespace rsrun
