// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The libraries that a program is given: of the build tree that rsrun is in, or of its installation, which may be
// staged in a folder (DESTDIR).
#pragma once

#include <string>

namespace rsrun {

// What connections need that are upgraded to the fabric. Only where that is wanted do these have to be there.
struct FabricParts {
    std::string worker;          // the program that moves their bytes
    std::string library;         // the socket library that it uses
    std::string provider_folder; // that of the plugin
};

// Where rsrun itself is: its folder, without links.
std::string own_folder();

// The preload library that upgrades connections. folder is that of rsrun. A Failure names the file that is missing.
std::string find_shim(const std::string& folder);

// provider_path is FI_PROVIDER_PATH or empty: the plugin may be in one of its folders instead. A Failure names the part
// that is missing.
FabricParts find_fabric_parts(const std::string& folder, const std::string& provider_path);

} // namespace rsrun
