// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "util/rsrun/target.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <span>
#include <sstream>
#include <vector>

#include <elf.h>
#include <link.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <fmt/format.h>

namespace rsrun {

namespace {

constexpr int max_chain = 4; // of interpreters; the same limit as in Linux

bool is_file(const std::string& path) {
    struct stat info {};
    return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

// Part of a file, or nothing if the file is shorter.
std::optional<std::vector<char>> read_at(std::ifstream& file, uint64_t offset, size_t size) {
    std::vector<char> bytes(size);
    file.clear();
    if (!file.seekg(static_cast<std::streamoff>(offset)) ||
        !file.read(bytes.data(), static_cast<std::streamsize>(size))) {
        return std::nullopt;
    }
    return bytes;
}

template <class T> std::optional<T> read_as(std::ifstream& file, uint64_t offset) {
    const auto bytes = read_at(file, offset, sizeof(T));
    if (!bytes) {
        return std::nullopt;
    }
    T value;
    memcpy(&value, bytes->data(), sizeof(value));
    return value;
}

using Header = ElfW(Ehdr);
using Segment = ElfW(Phdr);
using Note = ElfW(Nhdr);

std::optional<Header> elf_header(std::ifstream& file) {
    auto header = read_as<Header>(file, 0);
    return header && memcmp(header->e_ident, ELFMAG, SELFMAG) == 0 ? header : std::nullopt;
}

constexpr uint64_t max_part = 4096; // of the file parts inspected: names and notes are short

// Programs of the Go linker have a note of that name.
bool says_go(std::span<const char> notes) {
    while (notes.size() >= sizeof(Note)) {
        Note note;
        memcpy(&note, notes.data(), sizeof(note));
        const size_t name = (size_t{note.n_namesz} + 3) / 4 * 4;
        const size_t size = sizeof(note) + name + (size_t{note.n_descsz} + 3) / 4 * 4;
        if (size > notes.size()) {
            break;
        }
        if (note.n_namesz == 4 && memcmp(notes.data() + sizeof(note), "Go\0", 4) == 0) {
            return true;
        }
        notes = notes.subspan(size);
    }
    return false;
}

Target inspect_elf(std::ifstream& file, const Header& header, const std::string& path) {
    std::ifstream self("/proc/self/exe", std::ios::binary);
    const auto own = elf_header(self);
    if (own && (header.e_ident[EI_CLASS] != own->e_ident[EI_CLASS] || header.e_machine != own->e_machine)) {
        return {fmt::format("{} is a program for another kind of processor than rsrun's", path), false};
    }
    std::string interpreter;
    bool go = false;
    for (unsigned i = 0; i < header.e_phnum; ++i) {
        const auto segment = read_as<Segment>(file, header.e_phoff + uint64_t{i} * header.e_phentsize);
        if (!segment || (segment->p_type != PT_INTERP && segment->p_type != PT_NOTE)) {
            continue;
        }
        const auto bytes = read_at(file, segment->p_offset, std::min<uint64_t>(segment->p_filesz, max_part));
        if (bytes && segment->p_type == PT_INTERP) {
            interpreter.assign(bytes->data(), strnlen(bytes->data(), bytes->size()));
        } else if (bytes) {
            go = go || says_go(*bytes);
        }
    }
    if (interpreter.empty()) {
        return {fmt::format("{} is linked statically, and nothing can be preloaded into it", path), true};
    }
    if (interpreter.find("ld-musl") != std::string::npos) {
        return {fmt::format("{} uses the C library musl, and the preload library is made for glibc", path), false};
    }
    if (go) {
        return {fmt::format("{} is written in Go, which makes its system calls itself", path), true};
    }
    return {};
}

// The dynamic linker ignores LD_PRELOAD in a program that gains privileges which its user does not have.
std::string rights_of(const std::string& path) {
    struct stat info {};
    struct statvfs mount {};
    if (stat(path.c_str(), &info) != 0 || (statvfs(path.c_str(), &mount) == 0 && (mount.f_flag & ST_NOSUID) != 0)) {
        return "";
    }
    if ((info.st_mode & S_ISUID) != 0 && info.st_uid != getuid()) {
        return "is setuid";
    }
    // Without group execute permission, the bit has another meaning.
    if ((info.st_mode & S_ISGID) != 0 && (info.st_mode & S_IXGRP) != 0 && info.st_gid != getgid()) {
        return "is setgid";
    }
    if (getuid() != 0 && getxattr(path.c_str(), "security.capability", nullptr, 0) > 0) {
        return "has file capabilities";
    }
    return "";
}

} // namespace

std::string find_program(const std::string& name, const char* path) {
    const auto refuse = [&](int status, const char* why) {
        return NoProgram{status, fmt::format("{}: {}", name, why)};
    };
    if (name.find('/') != std::string::npos) {
        struct stat info {};
        if (stat(name.c_str(), &info) != 0) {
            throw refuse(errno == ENOENT || errno == ENOTDIR ? 127 : 126, strerror(errno));
        }
        if (!S_ISREG(info.st_mode)) {
            throw refuse(126, "not a file that can be run");
        }
        if (access(name.c_str(), X_OK) != 0) {
            throw refuse(126, strerror(errno));
        }
        return name;
    }
    bool there = false;
    std::istringstream folders(path != nullptr ? path : "/bin:/usr/bin");
    for (std::string folder; !name.empty() && std::getline(folders, folder, ':');) {
        std::string candidate = folder.empty() ? name : fmt::format("{}/{}", folder, name);
        if (is_file(candidate)) {
            there = true;
            if (access(candidate.c_str(), X_OK) == 0) {
                return candidate;
            }
        }
    }
    throw there ? refuse(126, "in PATH, but you may not run it") : refuse(127, "there is no such program in PATH");
}

Target inspect(const std::string& path) {
    std::string current = path;
    for (int i = 0; i < max_chain; ++i) {
        if (const std::string rights = rights_of(current); !rights.empty()) {
            return {fmt::format("{} {}: the dynamic linker preloads nothing into what gets rights of others", current,
                                rights),
                    true};
        }
        std::ifstream file(current, std::ios::binary);
        if (const auto header = elf_header(file)) {
            return inspect_elf(file, *header, current);
        }
        file.clear();
        file.seekg(0);
        std::string line;
        if (!std::getline(file, line) || !line.starts_with("#!")) {
            break; // unreadable, or of a type that another handler executes
        }
        std::istringstream words(line.substr(2));
        if (!(words >> current)) {
            break;
        }
    }
    return {};
}

} // namespace rsrun
