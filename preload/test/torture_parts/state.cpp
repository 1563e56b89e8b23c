// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Makes and maps the memory file, and keeps the first failure.
#include "preload/test/torture_parts/state.hpp"

#include <cstdarg>
#include <cstdio>
#include <new>

#include <sys/mman.h>
#include <unistd.h>

namespace torture {

namespace {

int file = -1;

void* map_file() { return mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0); }

} // namespace

Shared* shared = nullptr;

bool create_state() {
    file = memfd_create("torture", 0);
    if (file < 0 || ftruncate(file, sizeof(Shared)) != 0) {
        perror("memfd_create");
        return false;
    }
    void* memory = map_file();
    if (memory == MAP_FAILED) {
        perror("mmap");
        return false;
    }
    shared = new (memory) Shared;
    return true;
}

bool map_state(int fd) {
    file = fd;
    void* memory = map_file();
    shared = static_cast<Shared*>(memory);
    return memory != MAP_FAILED;
}

int state_fd() { return file; }

uint32_t index_of(const End& e) { return static_cast<uint32_t>(&e - shared->ends); }

const End& other_end(const End& e) { return shared->ends[index_of(e) ^ 1]; }

void name_of(const End& e, char (&out)[96]) {
    snprintf(out, sizeof(out), "connection %u %s (pid %d, %s by %s, path %d)", e.id, e.side == 0 ? "client" : "server",
             getpid(), action_names[e.action], style_names[e.style], e.path.load());
}

void fail(const char* format, ...) {
    if (!shared->failed.exchange(true)) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(shared->failure, sizeof(shared->failure), format, arguments);
        va_end(arguments);
    }
    for (;;) {
        pause(); // the first process reports it and ends all
    }
}

} // namespace torture
