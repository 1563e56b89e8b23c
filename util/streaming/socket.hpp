// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A socket of a test, of either kind, with the settings of the command line. Errors are a Failure that names the
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

// One wait for the peer, limited by --timeout. It reads the clock only once in a while.
class Wait {
  public:
    explicit Wait(const Options& options) : limit_(options.common.timeout) {}
    [[nodiscard]] bool over() { return ++checks_ % checks_per_clock == 0 && limit_.count() != 0 && late(); }

  private:
    static constexpr unsigned checks_per_clock = 4096;
    [[nodiscard]] bool late();

    std::chrono::seconds limit_;
    unsigned checks_ = 0;
    util::Clock::time_point start_{};
};

// Movable; a descriptor has one owner.
class Socket {
  public:
    Socket(const Options& options, int family);
    Socket(Socket&& other) noexcept;
    Socket& operator=(Socket&&) = delete;
    ~Socket();

    void listen(const util::Address& local);
    // Waits for a client, without limit unless --timeout was given.
    [[nodiscard]] Socket accept();
    void connect(const util::Address& remote, const std::optional<util::Address>& local);
    // For later connections.
    void set_inline(std::optional<int> bytes);
    // The number of iomaps (riomap) of a later connection.
    void set_mappings(int number);

    // The settings in force, as rdma-core's rstream prints them.
    [[nodiscard]] std::string keepalive_text() const;

    // Transfer all bytes.
    void send(std::span<const std::byte> data);
    void receive(std::span<std::byte> data);
    // Repeats call(done, flags), which transfers a part of `size` bytes and returns as send(2), until all bytes are
    // transferred.
    template <class Call> void send_by(size_t size, const char* what, const Call& call);
    // Whether the peer has ended the connection, or it was lost, and nothing is left to read.
    [[nodiscard]] bool ended();
    // Ends sending. The peer may still be reading.
    void shut();

    [[nodiscard]] int fd() const { return fd_; }
    [[nodiscard]] util::Address local() const;
    [[nodiscard]] const std::string& peer() const { return peer_; }
    // Throws the Failure of a wait that took too long.
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
    // Handles an error of a call: returns if the call is to be repeated.
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
