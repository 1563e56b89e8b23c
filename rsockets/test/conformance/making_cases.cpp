// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// socket, bind, listen, getsockname, close.
#include "rsockets/test/conformance/conformance.hpp"

#include <cstring>

#include <arpa/inet.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

using namespace conformance;

namespace {

// No more numbers for this process as long as it is there.
class NoNumbers {
  public:
    NoNumbers() {
        getrlimit(RLIMIT_NOFILE, &before_);
        const int next = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
        ::close(next);
        const rlimit now{static_cast<rlim_t>(next), before_.rlim_max};
        if (next < 0 || setrlimit(RLIMIT_NOFILE, &now) != 0) {
            throw Failure("setrlimit");
        }
    }
    NoNumbers(const NoNumbers&) = delete;
    NoNumbers& operator=(const NoNumbers&) = delete;
    ~NoNumbers() { setrlimit(RLIMIT_NOFILE, &before_); }

  private:
    rlimit before_{};
};

} // namespace

CASE(socket_of_ipv4) { MAKE(c.s.socket(AF_INET, SOCK_STREAM, 0)); }
CASE(socket_of_ipv6) { MAKE(c.s.socket(AF_INET6, SOCK_STREAM, 0)); }
CASE(socket_with_its_protocol) { MAKE(c.s.socket(AF_INET, SOCK_STREAM, IPPROTO_TCP)); }
CASE(socket_with_another_protocol) { MAKE(c.s.socket(AF_INET, SOCK_STREAM, IPPROTO_UDP)); }
CASE(socket_with_a_negative_protocol) { MAKE(c.s.socket(AF_INET, SOCK_STREAM, -1)); }
CASE(socket_with_a_protocol_beyond_all) { MAKE(c.s.socket(AF_INET, SOCK_STREAM, 4096)); }
CASE(socket_of_an_unsupported_type) { MAKE(c.s.socket(AF_INET, SOCK_RDM, 0)); }
CASE(socket_of_an_unknown_type) { MAKE(c.s.socket(AF_INET, 14, 0)); }
CASE(socket_of_types_that_few_have) {
    for (const int family : {AF_INET, AF_INET6}) {
        for (const int type : {int{SOCK_SEQPACKET}, int{SOCK_DCCP}, 0, 7, 11}) {
            const int fd = system_calls.socket(family, type, 0);
            if (fd >= 0) { // this kernel has it: nothing to compare
                system_calls.close(fd);
                continue;
            }
            SAY(c.s.socket(family, type, 0));
        }
    }
}
CASE(socket_of_a_negative_family) { MAKE(c.s.socket(-1, SOCK_STREAM, 0)); }
CASE(socket_of_an_unknown_family) { MAKE(c.s.socket(AF_MAX + 1, SOCK_STREAM, 0)); }
CASE(socket_with_unknown_flags) { MAKE(c.s.socket(AF_INET, SOCK_STREAM | 0x100, 0)); }

CASE(socket_with_cloexec_has_it) {
    const int fd = c.make_socket(AF_INET, SOCK_CLOEXEC);
    SAY(c.s.fcntl(fd, F_GETFD));
}

CASE(socket_without_cloexec_has_it_not) {
    const int fd = c.make_socket();
    SAY(c.s.fcntl(fd, F_GETFD));
    SAY(c.s.fcntl(fd, F_SETFD, FD_CLOEXEC));
    SAY(c.s.fcntl(fd, F_GETFD));
}

CASE(socket_flags_are_those_of_a_socket) {
    SAY(c.s.fcntl(c.make_socket(), F_GETFL));
    SAY(c.s.fcntl(c.make_socket(AF_INET, SOCK_NONBLOCK), F_GETFL));
}

CASE(nonblocking_is_switched_by_fcntl_and_ioctl) {
    const int fd = c.make_socket();
    SAY(c.s.fcntl(fd, F_SETFL, O_NONBLOCK));
    SAY(c.s.fcntl(fd, F_GETFL));
    int off = 0;
    SAY(c.s.ioctl(fd, FIONBIO, &off));
    SAY(c.s.fcntl(fd, F_GETFL));
    int on = 1;
    SAY(c.s.ioctl(fd, FIONBIO, &on));
    SAY(c.s.fcntl(fd, F_GETFL));
}

CASE(close_twice) {
    const int fd = c.make_socket();
    c.forget(fd);
    SAY(c.s.close(fd));
    SAY(c.s.close(fd));
}

CASE(calls_on_a_number_that_is_not_open) {
    const int fd = c.make_socket();
    c.forget(fd);
    c.s.close(fd);
    SAY(c.s.close(-1));
    SAY(c.s.send(fd, "x", 1, 0));
    SAY(c.s.recv(fd, c.buffer, 1, 0));
    SAY(c.s.listen(fd, 1));
    SAY(c.s.accept(fd, nullptr, nullptr));
    SAY(c.s.shutdown(fd, SHUT_RD));
    SAY(c.s.fcntl(fd, F_GETFL));
    SAY(c.s.dup(fd));
}

CASE(calls_on_a_file_that_is_no_socket) {
    const int fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    SAY(c.s.send(fd, "x", 1, 0));
    SAY(c.s.recv(fd, c.buffer, 1, 0));
    SAY(c.s.listen(fd, 1));
    SAY(c.s.accept(fd, nullptr, nullptr));
    SAY(c.s.shutdown(fd, SHUT_RD));
    ::close(fd);
}

CASE(a_fresh_socket_has_no_name) {
    for (const int family : {AF_INET, AF_INET6}) {
        const sockaddr_storage name = c.address_of(c.make_socket(family));
        c.note(text_of(name));
    }
}

CASE(a_fresh_socket_can_do_nothing) {
    const int fd = c.make_socket();
    sockaddr_storage peer{};
    socklen_t length = sizeof(peer);
    SAY(c.s.getpeername(fd, generic(peer), &length));
    SAY(c.s.recv(fd, c.buffer, 1, 0));
    SAY(c.s.send(fd, "x", 1, MSG_NOSIGNAL));
    SAY(c.s.accept(fd, nullptr, nullptr));
    SAY(c.s.shutdown(fd, SHUT_RDWR));
}

CASE(bind_to_port_zero_gives_a_port) {
    const int fd = c.make_socket();
    const sockaddr_in any = loopback(0);
    SAY(c.s.bind(fd, generic(any), sizeof(any)));
    c.note(text_of(c.address_of(fd)));
}

CASE(bind_twice) {
    const int fd = c.make_socket();
    const sockaddr_in any = loopback(0);
    SAY(c.s.bind(fd, generic(any), sizeof(any)));
    SAY(c.s.bind(fd, generic(any), sizeof(any)));
}

CASE(bind_with_a_short_address) {
    const int fd = c.make_socket();
    const sockaddr_in any = loopback(0);
    SAY(c.s.bind(fd, generic(any), sizeof(any) - 1));
    SAY(c.s.bind(fd, generic(any), 0));
}

CASE(bind_with_an_address_of_another_family) {
    const sockaddr_in6 six = loopback6(0);
    SAY(c.s.bind(c.make_socket(AF_INET), generic(six), sizeof(six)));
}

CASE(bind_without_an_address) { SAY(c.s.bind(c.make_socket(), nullptr, sizeof(sockaddr_in))); }

CASE(bind_to_an_address_of_another_machine) {
    sockaddr_in far = loopback(0);
    inet_pton(AF_INET, "203.0.113.7", &far.sin_addr);
    SAY(c.s.bind(c.make_socket(), generic(far), sizeof(far)));
}

CASE(bind_to_a_port_that_is_bound) {
    const int first = c.make_socket();
    const sockaddr_in any = loopback(0);
    SAY(c.s.bind(first, generic(any), sizeof(any)));
    const sockaddr_storage taken = c.address_of(first);
    SAY(c.s.bind(c.make_socket(), generic(taken), length_of(taken)));
}

CASE(bind_to_a_port_that_is_listened_on) {
    const sockaddr_storage taken = c.address_of(c.make_listener());
    SAY(c.s.bind(c.make_socket(), generic(taken), length_of(taken)));
}

CASE(reuseaddr_does_not_take_a_port_from_a_listener) {
    need_loopback(); // elsewhere the core may have a port space of its own, in which it listens
    const sockaddr_storage taken = c.address_of(c.make_listener());
    const int fd = c.make_socket();
    c.set(fd, SOL_SOCKET, SO_REUSEADDR, 1);
    SAY(c.s.bind(fd, generic(taken), length_of(taken)));
}

CASE(a_port_is_free_again_after_close) {
    const int first = c.make_socket();
    const sockaddr_in any = loopback(0);
    SAY(c.s.bind(first, generic(any), sizeof(any)));
    const sockaddr_storage taken = c.address_of(first);
    c.forget(first);
    SAY(c.s.close(first));
    SAY(c.s.bind(c.make_socket(), generic(taken), length_of(taken)));
}

CASE(a_listener_port_is_free_again_after_close) {
    const int first = c.make_listener();
    const sockaddr_storage taken = c.address_of(first);
    c.forget(first);
    SAY(c.s.close(first));
    const int second = c.make_socket();
    SAY(c.s.bind(second, generic(taken), length_of(taken)));
    SAY(c.s.listen(second, 1));
}

CASE(bind_ipv6) {
    const int fd = c.make_socket(AF_INET6);
    const sockaddr_in6 any = loopback6(0);
    SAY(c.s.bind(fd, generic(any), sizeof(any)));
    c.note(text_of(c.address_of(fd)));
}

CASE(bind_of_a_listener) {
    const int fd = c.make_listener();
    const sockaddr_in any = loopback(0);
    SAY(c.s.bind(fd, generic(any), sizeof(any)));
}

CASE(bind_of_a_connected_socket) {
    const Pair pair = c.make_pair();
    const sockaddr_in any = loopback(0);
    SAY(c.s.bind(pair.client, generic(any), sizeof(any)));
}

CASE(listen_without_bind_takes_a_port) {
    const int fd = c.make_socket();
    SAY(c.s.listen(fd, 1));
    c.note(text_of(c.address_of(fd)));
}

CASE(listen_twice) {
    const int fd = c.make_listener();
    SAY(c.s.listen(fd, 1));
    SAY(c.s.listen(fd, 100));
}

CASE(listen_with_any_backlog) {
    for (const int backlog : {-1, 0, 1, 1000000}) {
        const int fd = c.make_listener(backlog);
        c.make_connected_to(fd);
        c.accept_from(fd);
    }
}

CASE(listen_on_a_connected_socket) {
    const Pair pair = c.make_pair();
    SAY(c.s.listen(pair.client, 1));
}

CASE(a_listener_tells_its_name) {
    const int fd = c.make_listener();
    c.note(text_of(c.address_of(fd)));
    sockaddr_storage peer{};
    socklen_t length = sizeof(peer);
    SAY(c.s.getpeername(fd, generic(peer), &length));
}

CASE(a_listener_carries_no_data) {
    const int fd = c.make_listener();
    SAY(c.s.recv(fd, c.buffer, 1, 0));
    SAY(c.s.recv(fd, c.buffer, 1, MSG_DONTWAIT));
    SAY(c.s.send(fd, "x", 1, MSG_NOSIGNAL));
}

CASE(getsockname_cuts_to_the_room) {
    const int fd = c.make_listener();
    char buffer[sizeof(sockaddr_in)]{};
    socklen_t length = 4;
    SAY(c.s.getsockname(fd, reinterpret_cast<sockaddr*>(buffer), &length));
    c.note(std::to_string(length));
    c.note(buffer[1] == 0 && buffer[5] == 0 ? "the rest is untouched" : "too much");
    length = 0;
    SAY(c.s.getsockname(fd, reinterpret_cast<sockaddr*>(buffer), &length));
    c.note(std::to_string(length));
}

CASE(a_bound_socket_listens_on_its_port) {
    const int fd = c.make_socket();
    const sockaddr_in any = loopback(0);
    SAY(c.s.bind(fd, generic(any), sizeof(any)));
    const uint16_t port = port_of(c.address_of(fd));
    SAY(c.s.listen(fd, 1));
    c.note(port_of(c.address_of(fd)) == port ? "the same port" : "another port");
}

CASE(names_with_bad_room) {
    const Pair pair = c.make_pair();
    sockaddr_storage name{};
    for (auto* call : {c.s.getsockname, c.s.getpeername}) {
        socklen_t length = static_cast<socklen_t>(-1);
        SAY(call(pair.client, generic(name), &length));
        SAY(call(pair.client, generic(name), nullptr));
        length = sizeof(name);
        SAY(call(pair.client, nullptr, &length));
        length = 0;
        SAY(call(pair.client, nullptr, &length));
        c.note(std::to_string(length));
    }
}

CASE(accept_without_a_number_leaves_the_connection) {
    const int listener = c.make_listener();
    const int client = c.make_connected_to(listener);
    c.await(listener, POLLIN);
    SAY(c.s.fcntl(listener, F_SETFL, O_NONBLOCK)); // a wait here would outlive the case, and the limit with it
    {
        const NoNumbers none;
        SAY(c.s.accept(listener, nullptr, nullptr));
        SAY(c.s.accept(listener, nullptr, nullptr));
        c.note_poll("the listener", listener, POLLIN | POLLOUT);
    }
    const int fd = MAKE(c.s.accept(listener, nullptr, nullptr));
    c.send_all(client, "there");
    c.note_bytes("got", SAY(c.s.recv(fd, c.buffer, 5, MSG_WAITALL)));
    c.send_all(fd, "back");
    c.note_bytes("got", SAY(c.s.recv(client, c.buffer, 4, MSG_WAITALL)));
}

CASE(no_number_is_told_before_nobody) {
    const int listener = c.make_listener();
    SAY(c.s.fcntl(listener, F_SETFL, O_NONBLOCK));
    {
        const NoNumbers none;
        SAY(c.s.accept(listener, nullptr, nullptr));
        SAY(c.s.socket(AF_INET, SOCK_STREAM, 0));
        SAY(c.s.dup(listener));
        SAY(c.s.fcntl(listener, F_DUPFD, 0));
        SAY(c.s.epoll_create(0));
    }
    SAY(c.s.accept(listener, nullptr, nullptr));
}

CASE(listen_waits_for_the_result_of_connect) {
    const sockaddr_in to = loopback(closed_port());
    const int fd = c.make_socket(AF_INET, SOCK_NONBLOCK);
    SAY(c.s.connect(fd, generic(to), sizeof(to)));
    c.await(fd, POLLERR);
    SAY(c.s.listen(fd, 1));
    SAY(c.s.connect(fd, generic(to), sizeof(to)));
    SAY(c.s.listen(fd, 1));
}
