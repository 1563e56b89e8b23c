// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The conformance suite: cases that run twice, with the same code, on TCP sockets of the kernel's and on ours. What a
// case says of results, errors, bytes and events must be the same both times; the kernel's is right by definition.
//
//     CASE(recv_of_a_fresh_socket_fails) {
//         const int fd = c.make_socket();
//         SAY(c.s.recv(fd, c.buffer, 1, 0));
//     }
#pragma once

#include <functional>
#include <initializer_list>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <rdma/rsocket.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>

namespace conformance {

// The calls, of either kind.
struct Api {
    const char* name;
    int (*socket)(int, int, int);
    int (*bind)(int, const sockaddr*, socklen_t);
    int (*listen)(int, int);
    int (*accept)(int, sockaddr*, socklen_t*);
    int (*accept4)(int, sockaddr*, socklen_t*, int);
    int (*connect)(int, const sockaddr*, socklen_t);
    int (*shutdown)(int, int);
    int (*close)(int);
    ssize_t (*recv)(int, void*, size_t, int);
    ssize_t (*recvfrom)(int, void*, size_t, int, sockaddr*, socklen_t*);
    ssize_t (*recvmsg)(int, msghdr*, int);
    ssize_t (*send)(int, const void*, size_t, int);
    ssize_t (*sendto)(int, const void*, size_t, int, const sockaddr*, socklen_t);
    ssize_t (*sendmsg)(int, const msghdr*, int);
    ssize_t (*read)(int, void*, size_t);
    ssize_t (*readv)(int, const iovec*, int);
    ssize_t (*write)(int, const void*, size_t);
    ssize_t (*writev)(int, const iovec*, int);
    ssize_t (*sendfile)(int, int, off_t*, size_t);
    int (*poll)(pollfd*, nfds_t, int);
    int (*ppoll)(pollfd*, nfds_t, const timespec*, const sigset_t*);
    int (*select)(int, fd_set*, fd_set*, fd_set*, timeval*);
    int (*pselect)(int, fd_set*, fd_set*, fd_set*, const timespec*, const sigset_t*);
    int (*epoll_create)(int);
    int (*epoll_ctl)(int, int, int, epoll_event*);
    int (*epoll_wait)(int, epoll_event*, int, int);
    int (*getpeername)(int, sockaddr*, socklen_t*);
    int (*getsockname)(int, sockaddr*, socklen_t*);
    int (*setsockopt)(int, int, int, const void*, socklen_t);
    int (*getsockopt)(int, int, int, void*, socklen_t*);
    int (*fcntl)(int, int, ...);
    int (*ioctl)(int, unsigned long, ...);
    int (*dup)(int);
    int (*dup2)(int, int);
};

// The kernel's by system calls, whatever is preloaded before libc.
extern const Api system_calls;

struct Failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// What the case needs is not here.
struct Skip : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Pair {
    int client;
    int server;
};

// One run of a case.
class Case {
  public:
    explicit Case(const Api& api) : s(api) {}
    Case(const Case&) = delete;
    Case& operator=(const Case&) = delete;
    ~Case(); // closes what was made

    const Api& s;
    char buffer[65536]{};

    // Writes down what a call has returned, with its errno.
    long long say(const char* call, const std::function<long long()>& body);
    // The same for a call that makes a descriptor, whose number is not compared.
    int say_made(const char* call, const std::function<int()>& body);
    void note(const std::string& line) { lines.push_back(line); }
    // The bytes of the buffer.
    void note_bytes(const char* what, long long length);
    // Events by their names.
    void note_events(const char* what, unsigned events);
    void note_error(int fd); // SO_ERROR

    // What must work for the case to make sense; a Failure otherwise.
    int make_socket(int family = AF_INET, int flags = 0);
    int make_listener(int backlog = 16, int family = AF_INET);
    sockaddr_storage address_of(int fd);
    int make_connected_to(int listener);
    int accept_from(int listener);
    Pair make_pair(int family = AF_INET);
    void send_all(int fd, const std::string& text);
    // Waits until one of the events is there; all that are.
    short await(int fd, short events, int timeout_ms = 20000);
    // The events of this moment, noted.
    void note_poll(const char* what, int fd, short events);
    // Sends until nothing more is taken; how much was.
    size_t fill(int fd);
    // Sends a byte on what was filled. A send that still found space (the kernel's grows when the peer's answers or its
    // timers come, and there is some where a connection goes back to the kernel from memory that is full) did not wait:
    // it is filled again, and the next one is what is told.
    ssize_t send_that_waits(int fd, int flags, size_t* filled = nullptr);
    // Receives that much.
    void drain(int fd, size_t length);
    void set(int fd, int level, int name, int value);
    int track(int fd); // to be closed at the end
    void forget(int fd);
    // A thread that is joined at the end of the case. What it throws is thrown by join().
    void run(std::function<void()> body);
    void join();

    std::vector<std::string> lines;

  private:
    void exchange(const Pair& pair);

    std::vector<int> made_;
    std::vector<std::thread> threads_;
    std::mutex failures_mutex_;
    std::string failures_; // of the threads
};

// Of this machine: FABTESTS_NODE and FABTESTS_NODE6 name addresses of a device's.
std::string node();
// A case that names the loopback address by other means than the functions below.
void need_loopback();
sockaddr_in loopback(uint16_t port);
sockaddr_in6 loopback6(uint16_t port);
socklen_t length_of(const sockaddr_storage& address);
inline const sockaddr* generic(const sockaddr_storage& a) { return reinterpret_cast<const sockaddr*>(&a); }
inline const sockaddr* generic(const sockaddr_in& a) { return reinterpret_cast<const sockaddr*>(&a); }
inline const sockaddr* generic(const sockaddr_in6& a) { return reinterpret_cast<const sockaddr*>(&a); }
inline sockaddr* generic(sockaddr_storage& a) { return reinterpret_cast<sockaddr*>(&a); }
uint16_t port_of(const sockaddr_storage& address);
std::string text_of(const sockaddr_storage& address, bool with_port = false);
// A loopback port that nobody listens on.
uint16_t closed_port();
// Until a thread of this process sleeps in the kernel: how a case knows that a call has begun to wait.
void await_sleep(int thread_id);
int thread_id();

struct Registered {
    Registered(const char* name, void (*body)(Case&));
};

} // namespace conformance

#define CASE(name)                                                                                                     \
    static void name(conformance::Case& c);                                                                            \
    static const conformance::Registered registered_##name(#name, name);                                               \
    static void name(conformance::Case& c)
#define SAY(call) c.say(#call, [&] { return static_cast<long long>(call); })
#define MAKE(call) c.say_made(#call, [&] { return call; })
