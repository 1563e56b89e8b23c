// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What all processes of the test share: the ends of the connections with their progress, totals, and the first failure.
// It is in a memory file, which forked processes inherit; an executed one maps it by its descriptor.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include <pthread.h>

namespace torture {

constexpr size_t max_ends = 512;
constexpr size_t max_size = 256 << 10;
constexpr uint64_t endless = uint64_t{1} << 60;

enum Action : uint32_t {
    drive_action,
    fork_action,
    child_action,
    share_action,
    pass_action,
    keep_action,
    exec_action,
    kill_action,
    actions
};
inline constexpr const char* action_names[] = {"drive", "fork", "child", "share", "pass", "keep", "exec", "kill"};

enum Style : uint32_t { by_poll, by_select, by_epoll, by_edges, by_threads, styles };
inline constexpr const char* style_names[] = {"poll", "select", "epoll", "epoll-edge", "blocking"};

struct End {
    uint32_t id = 0;
    uint32_t side = 0;                  // 0: connected, 1: accepted
    uint32_t plan = 0;                  // of the end of the connection
    std::atomic<uint32_t> port{0};      // of the end that connected
    std::atomic<uint64_t> total_out{0}; // endless at first, if a disturbance ends the traffic
    std::atomic<uint64_t> total_in{0};
    uint64_t key_out = 0;
    uint64_t key_in = 0;
    std::atomic<uint64_t> out{0};
    std::atomic<uint64_t> in{0};
    std::atomic<uint64_t> steps{0};
    std::atomic<uint32_t> action{0};
    std::atomic<uint32_t> style{0};
    std::atomic<int> process{0};
    std::atomic<int> path{-1};
    std::atomic<uint64_t> seen[5]{}; // turns of each answer of rspreload_path
    std::atomic<bool> active{false};
    std::atomic<bool> warming{false};        // it may wait for others, and makes no progress
    std::atomic<bool> reset{false};          // by a process that was killed
    std::atomic<uint64_t> ended_ms{0};       // when that was seen
    std::atomic<const char*> doing{nullptr}; // the same address in all processes but executed ones
    pthread_mutex_t read_turn;
    pthread_mutex_t write_turn;
};

struct Shared {
    std::atomic<uint32_t> port{0};
    std::atomic<bool> failed{false};
    char failure[512] = {};
    std::atomic<uint64_t> verified{0};
    std::atomic<uint64_t> done[actions]{};
    std::atomic<bool> ending{false};         // endless traffic gets an end
    std::atomic<bool> kill_side{false};      // one of the processes will be killed,
    std::atomic<int> killed_side{-1};        // and which one it was
    std::atomic<uint32_t> killed{0};         // writers
    std::atomic<uint32_t> killed_moved{0};   // of them, upgraded then
    std::atomic<uint32_t> killed_reset{0};   // of those, the peer read a reset, not the end
    std::atomic<uint32_t> executed_moved{0}; // programs executed on a connection that was upgraded then
    End ends[max_ends];
};

extern Shared* shared;

// Prints an error and returns false if there is no memory for it.
bool create_state();
// The same memory, in an executed process that inherits the descriptor.
bool map_state(int fd);
int state_fd();

uint32_t index_of(const End& e);
const End& other_end(const End& e);
void name_of(const End& e, char (&out)[96]);

// Leaves the report to the first process, which then ends all processes. Only the first failure is kept.
[[noreturn]] __attribute__((format(printf, 1, 2))) void fail(const char* format, ...);

} // namespace torture
