// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What the tests of rsrun share: files in a folder of their own, and the text of a failure.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include <sys/stat.h>

#include "fabtests/common/test.hpp"
#include "util/common/failure.hpp"

namespace rsrun_test {

template <class Call> std::string failure_of(Call call) {
    try {
        call();
    } catch (const util::Failure& e) {
        return e.what();
    }
    return "";
}

// A folder of the build's, so that libraries can be loaded from it, and gone at the end.
struct Folder {
    std::filesystem::path path;
    Folder() {
        const char* build = getenv("FABTESTS_BIN");
        std::string name = std::filesystem::canonical(build != nullptr ? build : ".").string() + "/rsrun_test.XXXXXX";
        if (mkdtemp(name.data()) == nullptr) {
            throw fabtests::Failure("mkdtemp " + name);
        }
        path = name;
    }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    ~Folder() {
        std::error_code ignored;
        std::filesystem::remove_all(path, ignored);
    }
    std::string put(const std::string& name, const std::string& text, mode_t mode = 0755) const {
        const std::filesystem::path file = path / name;
        std::filesystem::create_directories(file.parent_path());
        std::ofstream(file, std::ios::binary) << text;
        chmod(file.c_str(), mode);
        return file.string();
    }
};

} // namespace rsrun_test
