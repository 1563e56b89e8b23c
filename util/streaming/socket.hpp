// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A socket of a test, of either kind, with the settings of the command line. What fails is a Failure that names the
// address and the reason.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "util/common/backend.hpp"
#include "util/streaming/calls.hpp"
#include "util/streaming/options.hpp"

namespace streaming {

const Calls& calls_of(const Options& options);

// One wait for the peer, which must not take longer than --timeout. It looks at the clock now and then only.
class Wait {
  public:
    explicit Wait(const Options& options) : limit_(options.common.timeout) {}
    [[nodiscard]] bool over() { return ++looks_ % looks_a_time == 0 && limit_.count() != 0 && late(); }

  private:
    static constexpr unsigned looks_a_time = 4096;
    [[nodiscard]] bool late();

    std::chrono::seconds limit_;
    unsigned looks_ = 0;
    util::Clock::time_point start_{};
};

// Moves; there is one owner of a descriptor.
class Socket {
  public:
    Socket(const Options& options, int family);
    Socket(Socket&& other) noexcept;
    Socket& operator=(Socket&&) = delete;
    ~Socket();

    void listen(const util::Address& local);
    // Waits for a client; without end unless --timeout was given.
    [[nodiscard]] Socket accept();
    void connect(const util::Address& remote, const std::optional<util::Address>& local);
    // For the connections that come.
    void set_inline(std::optional<int> bytes);
    // How many mappings (riomap) a connection to come may have.
    void set_mappings(int number);

    // What is in force, in the words of rdma-core's rstream.
    [[nodiscard]] std::string keepalive_text() const;

    // All of it.
    void send(std::span<const std::byte> data);
    void receive(std::span<std::byte> data);
    // Repeats call(done, flags), which takes a part of `size` bytes at a time and returns as send(2), until all is
    // gone.
    template <class Call> void send_by(size_t size, const char* what, const Call& call);
    // Whether the peer has ended the connection, or lost it, and nothing is left to be read.
    [[nodiscard]] bool ended();
    // No more is to come. The peer may still be reading.
    void shut();

    [[nodiscard]] int fd() const { return fd_; }
    [[nodiscard]] util::Address local() const;
    [[nodiscard]] const std::string& peer() const { return peer_; }
    // The Failure of a wait that has taken too long.
    [[noreturn]] void give_up(const char* what) const;

  private:
    Socket(const Options& options, int fd, std::string peer);
    void set(const char* option, int level, int name, int value);
    [[nodiscard]] int get(const char* option, int level, int name) const;
    void apply_settings();
    void apply_mode();
    void block(bool wanted);
    // False if the time is over.
    [[nodiscard]] bool await(short events, unsigned seconds);
    void await_turn(short events, const char* what);
    // Deals with an error of a call: returns if it is to be repeated.
    void take_error(const char* what, Wait& wait) const;
    [[nodiscard]] bool blocking() const { return options_->mode == Mode::blocking; }

    const Options* options_;
    const Calls* calls_;
    int fd_;
    std::string peer_;
};

template <class Call> void Socket::send_by(size_t size, const char* what, const Call& call) {
    const int flags = MSG_NOSIGNAL | (blocking() ? 0 : MSG_DONTWAIT);
    Wait wait(*options_);
    for (size_t done = 0; done < size;) {
        await_turn(POLLOUT, what);
        const ssize_t n = call(done, flags);
        if (n >= 0) {
            done += static_cast<size_t>(n);
        } else {
            take_error(what, wait);
        }
    }
}

} // namespace streaming
