// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The libraries that a program needs: those of the build tree that contains rsrun, or of its installation, which may be
// staged in a folder (DESTDIR).
#pragma once

#include <string>

namespace rsrun {

// The files that upgrades to the fabric need. They are required only if the fabric is used.
struct FabricParts {
    std::string worker;          // the program that moves their bytes
    std::string library;         // the socket library that it uses
    std::string provider_folder; // folder of the plugin
};

// The folder of the rsrun executable, without symbolic links.
std::string own_folder();

// The preload library that upgrades connections. folder is that of rsrun. Throws a Failure that names a missing file.
std::string find_shim(const std::string& folder);

// provider_path is FI_PROVIDER_PATH or empty: the plugin may be in one of its folders instead. Throws a Failure that
// names a missing file.
FabricParts find_fabric_parts(const std::string& folder, const std::string& provider_path);

} // namespace rsrun
