// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What a socket owns, each part alone: its bound address, a connect under way, its connections, what it has while it
// listens, the values of its options, its end. Needs no network but the loopback.
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <rdma/rsocket.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/descriptor.hpp"
#include "fabtests/common/test.hpp"
#include "rsockets/bound_address.hpp"
#include "rsockets/connect_attempt.hpp"
#include "rsockets/connections.hpp"
#include "rsockets/ending.hpp"
#include "rsockets/library.hpp"
#include "rsockets/listener.hpp"
#include "rsockets/option_values.hpp"
#include "rsockets/setup_attendant.hpp"
#include "rsockets/setup_steps.hpp"
#include "rsockets/socket.hpp"

namespace {

using namespace rsockets;

Address loopback(uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    return {&address, sizeof(address)};
}

template <class Values> int set(Values& options, int level, int name, int value) {
    return options.set(level, name, &value, sizeof(value));
}

bool is_readable(int fd) {
    pollfd one{fd, POLLIN, 0};
    return poll(&one, 1, 0) == 1;
}

// ---- BoundAddress

void test_a_port_that_was_left_open_is_chosen_and_held() {
    const KernelOptions options(AF_INET);
    BoundAddress bound;
    EXPECT(!bound.held() && !bound.asked().set());
    const Address any_port = loopback(0);
    EXPECT_EQ(bound.bind(options, any_port.get(), any_port.length), 0);
    EXPECT(bound.held());
    EXPECT_EQ(bound.asked().port(), 0);
    const Address name = bound.name(AF_INET);
    EXPECT(name.port() != 0);
    BoundAddress second;
    EXPECT_EQ(second.bind(options, name.get(), name.length), EADDRINUSE);
    EXPECT(!second.held() && !second.asked().set());
    bound.release();
    EXPECT_EQ(second.bind(options, name.get(), name.length), 0);
    EXPECT_EQ(second.name(AF_INET).port(), name.port());
}

void test_an_address_that_is_not_held_is_any() {
    const BoundAddress bound;
    EXPECT(bound.name(AF_INET).wildcard());
    EXPECT_EQ(bound.name(AF_INET6).family(), AF_INET6);
    EXPECT_EQ(bound.name(AF_INET).port(), 0);
}

void test_what_was_held_is_held_again_beside_a_connection_that_lives_on() {
    const KernelOptions options(AF_INET);
    const base::Descriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    EXPECT_EQ(setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
    Address address = loopback(0);
    EXPECT_EQ(bind(listener.get(), address.get(), address.length), 0);
    EXPECT_EQ(listen(listener.get(), 1), 0);
    EXPECT_EQ(getsockname(listener.get(), address.get(), &address.length), 0);
    const base::Descriptor client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(client.get(), address.get(), address.length), 0);
    base::Descriptor accepted(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT(accepted.open());
    EXPECT_EQ(shutdown(listener.get(), SHUT_RDWR), 0); // it listens no more, and the connection has its port
    BoundAddress first;
    EXPECT_EQ(first.bind(options, address.get(), address.length), EADDRINUSE);
    BoundAddress again;
    EXPECT_EQ(again.hold_again(options, address), 0);
    EXPECT_EQ(again.name(AF_INET).port(), address.port());
    EXPECT(!again.asked().set()); // the program did not bind
}

void test_a_listener_of_the_kernels_on_the_address_is_seen() {
    const KernelOptions options(AF_INET);
    BoundAddress bound;
    const Address any_port = loopback(0);
    EXPECT_EQ(bound.bind(options, any_port.get(), any_port.length), 0);
    EXPECT(!bound.kernel_listens(options, AF_INET));
    const base::Descriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int on = 1;
    EXPECT_EQ(setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), 0);
    const Address name = bound.name(AF_INET);
    EXPECT_EQ(bind(listener.get(), name.get(), name.length), 0);
    EXPECT_EQ(listen(listener.get(), 1), 0);
    EXPECT(bound.kernel_listens(options, AF_INET));
}

// ---- ConnectAttempt

void test_each_attempt_has_a_number_and_is_reported_once() {
    ConnectAttempt attempt;
    EXPECT(attempt.reported()); // there is nothing to report
    EXPECT_EQ(attempt.begin(), 1U);
    EXPECT(!attempt.reported());
    attempt.report();
    EXPECT(attempt.reported());
    EXPECT_EQ(attempt.begin(), 2U);
    EXPECT_EQ(attempt.number(), 2U);
    EXPECT(!attempt.reported());
}

void test_a_set_is_readable_from_the_end_of_an_attempt_until_it_was_seen() {
    const base::Descriptor set(epoll_create1(EPOLL_CLOEXEC));
    ConnectAttempt attempt;
    attempt.finish(); // nobody looks
    attempt.begin();
    EXPECT_EQ(attempt.show_in(set.get()), 0);
    EXPECT(attempt.shown());
    EXPECT(!is_readable(set.get()));
    attempt.finish();
    EXPECT(is_readable(set.get()));
    attempt.seen();
    EXPECT(!is_readable(set.get()));
    EXPECT(!attempt.shown());
}

void test_a_further_attempt_is_not_over_with_the_one_before() {
    const base::Descriptor set(epoll_create1(EPOLL_CLOEXEC));
    ConnectAttempt attempt;
    attempt.begin();
    EXPECT_EQ(attempt.show_in(set.get()), 0);
    attempt.finish();
    attempt.begin();
    EXPECT(!is_readable(set.get()));
    EXPECT_EQ(attempt.show_in(set.get()), 0);
    EXPECT(!is_readable(set.get()));
    attempt.finish();
    EXPECT(is_readable(set.get()));
}

void test_an_attempt_that_cannot_be_shown_says_why() {
    ConnectAttempt attempt;
    attempt.begin();
    EXPECT_EQ(attempt.show_in(-1), EBADF);
    EXPECT(!attempt.shown());
}

// ---- Connections

struct Plain {
    explicit Plain(size_t buffer, int* gone = nullptr) : buffer(buffer), gone(gone) {}
    Plain(const Plain&) = delete;
    Plain& operator=(const Plain&) = delete;
    ~Plain() {
        if (gone != nullptr) {
            ++*gone;
        }
    }
    [[nodiscard]] Sizes sizes() const {
        Sizes all;
        all.recv_buffer = buffer;
        return all;
    }
    size_t buffer;
    int* gone;
};
using PlainConnections = ConnectionsOf<Plain>;

void test_the_last_connection_is_the_present_one_until_it_is_given_up() {
    int gone = 0;
    PlainConnections all;
    EXPECT(all.present() == nullptr && all.last_established() == nullptr);
    EXPECT_EQ(all.receive_buffer(), SIZE_MAX);
    all.add(std::make_unique<Plain>(1000, &gone));
    Plain* const first = all.present();
    EXPECT(first != nullptr && all.last_established() == nullptr); // it may still fail, and be destroyed
    all.note_connected();
    EXPECT(all.last_established() == first);
    EXPECT_EQ(all.receive_buffer(), 1000U);
    EXPECT(all.give_up() == first);
    EXPECT(all.give_up() == nullptr);
    EXPECT(all.present() == nullptr && all.last_established() == first);
    all.add(std::make_unique<Plain>(2000, &gone));
    EXPECT_EQ(all.receive_buffer(), 2000U);
    EXPECT_EQ(gone, 0); // another thread may be within a call on the first
    PlainConnections::List taken = all.take_all();
    EXPECT_EQ(taken.size(), 2U);
    EXPECT_EQ(taken.back()->buffer, 2000U);
    EXPECT(all.present() == nullptr && all.last_established() == nullptr);
    EXPECT(all.take_all().empty());
    EXPECT_EQ(gone, 0);
}

void test_attempts_that_failed_go_before_the_next_one() {
    int gone = 0;
    PlainConnections all;
    for (int attempt = 0; attempt < 3; ++attempt) {
        const PlainConnections::Handling handling(all);
        (void)all.give_up();
        EXPECT_EQ(all.take_failed().size(), attempt == 0 ? 0U : 1U);
        EXPECT_EQ(gone, attempt);
        all.add(std::make_unique<Plain>(1, &gone));
    }
}

void test_connections_stay_while_another_call_handles_them() {
    int gone = 0;
    PlainConnections all;
    all.add(std::make_unique<Plain>(1, &gone));
    {
        const PlainConnections::Handling handling(all);
        const PlainConnections::Handling another(all);
        EXPECT(all.take_failed().empty());
    }
    all.note_connected();
    const PlainConnections::Handling handling(all);
    EXPECT(all.take_failed().empty()); // a call that sends holds no Handling
    EXPECT_EQ(gone, 0);
}

// ---- Listener

std::shared_ptr<Listener> listener_for(size_t limit) {
    std::shared_ptr<Listener> made;
    EXPECT_EQ(Listener::open(Library::get(), loopback(0), limit, made), 0);
    return made;
}

struct Nobody : EventHandler {
    void on_request(base::Info /*request*/) override {}
    void on_connected(const ::fid* /*subject*/) override {}
    void on_failed(const ::fid* /*subject*/, int /*error*/) override {}
    void on_shutdown() override {}
};

Ref<Socket> unconnected() { return Ref<Socket>::adopt(new Socket(Library::get(), AF_INET, false)); }

void test_a_listener_has_the_port_that_the_core_chose() {
    Nobody target;
    const std::shared_ptr<Listener> listener = listener_for(1);
    EXPECT_EQ(listener->attach(&target), 0);
    EXPECT_EQ(listener->listen(), 0);
    EXPECT(listener->name().port() != 0);
    const base::Descriptor second(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const Address name = listener->name();
    EXPECT(bind(second.get(), name.get(), name.length) != 0 && errno == EADDRINUSE);
    listener->detach();
}

void test_accepts_make_the_descriptor_readable_and_come_in_order() {
    const std::shared_ptr<Listener> listener = listener_for(4);
    const Ref<Socket> one = unconnected();
    const Ref<Socket> other = unconnected();
    listener->add(one);
    listener->add(other);
    EXPECT_EQ(listener->opening().size(), 2U);
    EXPECT(!is_readable(listener->signal_fd()) && listener->take().get() == nullptr);
    EXPECT(listener->make_ready(*other));
    EXPECT(listener->make_ready(*one));
    EXPECT(!listener->make_ready(*one)); // once
    EXPECT(listener->opening().empty() && is_readable(listener->signal_fd()));
    const Ref<Socket> first = listener->take();
    EXPECT(first.get() == other.get() && is_readable(listener->signal_fd()));
    listener->put_back(first); // nobody could take it
    EXPECT(listener->take().get() == other.get());
    EXPECT(listener->take().get() == one.get());
    EXPECT(!is_readable(listener->signal_fd()) && listener->take().get() == nullptr);
}

void test_one_that_failed_while_it_opened_is_not_accepted() {
    const std::shared_ptr<Listener> listener = listener_for(4);
    const Ref<Socket> child = unconnected();
    listener->add(child);
    EXPECT(listener->remove(*child).get() == child.get());
    EXPECT(listener->remove(*child).get() == nullptr);
    EXPECT(!listener->make_ready(*child));
    EXPECT(!is_readable(listener->signal_fd()));
}

base::Info request_for(uint64_t mark) {
    base::Info made(fi_allocinfo());
    EXPECT(made);
    made->mode = mark;
    return made;
}

void test_requests_wait_in_order_for_room_in_the_backlog() {
    const std::shared_ptr<Listener> listener = listener_for(2);
    const Ref<Socket> one = unconnected();
    const Ref<Socket> other = unconnected();
    listener->add(one);
    EXPECT(listener->has_space());
    listener->add(other);
    EXPECT(listener->make_ready(*other));
    EXPECT(!listener->has_space()); // what opens and what is ready count alike
    listener->wait_for_space(request_for(1));
    listener->wait_for_space(request_for(2));
    EXPECT(!listener->next_request());
    (void)listener->take();
    const base::Info next = listener->next_request();
    EXPECT(next && next->mode == 1);
    listener->set_limit(1);
    EXPECT(!listener->next_request());
    (void)listener->remove(*one);
    const base::Info last = listener->next_request();
    EXPECT(last && last->mode == 2);
    EXPECT(!listener->next_request());
}

// ---- Ending

void test_the_first_loss_is_the_error_and_is_told_once() {
    Ending ending;
    EXPECT_EQ(ending.take_error(), 0);
    EXPECT(ending.lose(ECONNRESET));
    EXPECT(!ending.lose(ETIMEDOUT));
    EXPECT_EQ(ending.take_error(), ECONNRESET);
    EXPECT_EQ(ending.take_error(), 0);
    EXPECT(!ending.lose(ETIMEDOUT));
    EXPECT_EQ(ending.take_error(), 0);
}

void test_the_next_connection_begins_with_the_error_that_was_not_told() {
    Ending ending;
    ending.receive_shut = true;
    ending.send_shut = true;
    EXPECT(ending.lose(ECONNREFUSED));
    ending.begin_anew();
    EXPECT(!ending.lost && !ending.receive_shut && !ending.send_shut);
    EXPECT_EQ(ending.take_error(), ECONNREFUSED);
    EXPECT(ending.lose(ECONNRESET));
    EXPECT_EQ(ending.take_error(), ECONNRESET);
}

// ---- OptionValues

void test_keepalive_asks_nothing_of_a_connection_until_it_is_set() {
    OptionValues options(AF_INET, Config());
    EXPECT(!options.keepalive());
    EXPECT_EQ(set(options.kernel(), IPPROTO_TCP, TCP_KEEPIDLE, 7), 0);
    EXPECT(!options.keepalive());
    EXPECT_EQ(set(options.kernel(), SOL_SOCKET, SO_KEEPALIVE, 1), 0);
    EXPECT_EQ(set(options.kernel(), IPPROTO_TCP, TCP_KEEPINTVL, 3), 0);
    EXPECT_EQ(set(options.kernel(), IPPROTO_TCP, TCP_KEEPCNT, 4), 0);
    const auto wanted = options.keepalive();
    EXPECT(wanted && wanted->wanted);
    EXPECT_EQ(wanted->idle, 7000U);
    EXPECT_EQ(wanted->interval, 3000U);
    EXPECT_EQ(wanted->count, 4U);
    EXPECT_EQ(set(options.kernel(), SOL_SOCKET, SO_KEEPALIVE, 0), 0);
    EXPECT(options.keepalive() && options.keepalive()->idle == 0); // asked to be quiet, whatever the provider's default
}

// tcp(7): with TCP_USER_TIMEOUT, an idle peer is given up at that time, not after TCP_KEEPCNT questions.
void test_a_user_timeout_says_how_often_an_idle_peer_is_asked() {
    OptionValues options(AF_INET, Config());
    EXPECT_EQ(set(options.kernel(), SOL_SOCKET, SO_KEEPALIVE, 1), 0);
    EXPECT_EQ(set(options.kernel(), IPPROTO_TCP, TCP_KEEPIDLE, 2), 0);
    EXPECT_EQ(set(options.kernel(), IPPROTO_TCP, TCP_KEEPINTVL, 1), 0);
    EXPECT_EQ(set(options.kernel(), IPPROTO_TCP, TCP_USER_TIMEOUT, 4500), 0);
    EXPECT_EQ(options.keepalive()->count, 3U); // 2 s idle, then 1, 2, 3 s
    EXPECT_EQ(set(options.kernel(), IPPROTO_TCP, TCP_USER_TIMEOUT, 100), 0);
    EXPECT_EQ(options.keepalive()->count, 1U);
    EXPECT_EQ(set(options.kernel(), IPPROTO_TCP, TCP_USER_TIMEOUT, 1000000), 0);
    EXPECT_EQ(options.keepalive()->count, 127U);
    EXPECT_EQ(options.keepalive()->user_timeout, 1000000U);
}

void test_sizes_are_bounded_and_given_to_the_next_connection() {
    Config defaults;
    defaults.send_buffer = 100000;
    OptionValues options(AF_INET, defaults);
    EXPECT_EQ(options.sizes().send_buffer, 100000U);
    const Option& receive = *find_option(SOL_SOCKET, SO_RCVBUF);
    const int small = 1;
    EXPECT_EQ(options.set_size(receive, &small, sizeof(small)), 0);
    EXPECT_EQ(options.sizes().recv_buffer, static_cast<size_t>(receive.min));
    EXPECT_EQ(options.size(receive), static_cast<size_t>(receive.min));
    const int negative = -1;
    EXPECT_EQ(options.set_size(*find_option(SOL_RDMA, RDMA_SQSIZE), &negative, sizeof(negative)), -EINVAL);
    EXPECT_EQ(options.set_size(receive, &small, sizeof(small) - 1), -EINVAL);
    EXPECT_EQ(options.set_size(receive, nullptr, sizeof(small)), -EFAULT);
    EXPECT_EQ(options.set_size(*find_option(SOL_SOCKET, SO_KEEPALIVE), &small, sizeof(small)), -EINVAL);
    EXPECT_EQ(options.size(receive), static_cast<size_t>(receive.min));
}

void test_an_accepted_socket_has_the_values_of_its_listener() {
    OptionValues listener(AF_INET6, Config());
    EXPECT_EQ(set(listener.kernel(), IPPROTO_IPV6, IPV6_V6ONLY, 1), 0);
    listener.read_v6_only();
    const int size = 200000;
    EXPECT_EQ(listener.set_size(*find_option(SOL_SOCKET, SO_SNDBUF), &size, sizeof(size)), 0);
    EXPECT_EQ(set(listener.kernel(), IPPROTO_TCP, TCP_NODELAY, 1), 0);
    OptionValues accepted(AF_INET6, Config());
    accepted.inherit(listener);
    EXPECT(accepted.v6_only());
    EXPECT_EQ(accepted.sizes().send_buffer, 200000U);
    EXPECT_EQ(accepted.kernel().value<int>(IPPROTO_TCP, TCP_NODELAY), 1);
}

void test_a_route_is_kept_as_it_is_up_to_a_length() {
    OptionValues options(AF_INET, Config());
    const std::vector<std::byte> route(144, std::byte{7});
    EXPECT_EQ(options.set_route(route.data(), static_cast<socklen_t>(route.size())), 0);
    EXPECT(options.route() == route);
    const std::vector<std::byte> longer(4097);
    EXPECT_EQ(options.set_route(longer.data(), static_cast<socklen_t>(longer.size())), -EINVAL);
    EXPECT_EQ(options.set_route(nullptr, 1), -EFAULT);
    EXPECT(options.route() == route);
    EXPECT_EQ(options.set_route(nullptr, 0), 0);
    EXPECT(options.route().empty());
}

void test_connections_that_are_set_up_are_watched_for_some_steps_after_each_event() {
    SetupSteps steps;
    EXPECT(!steps.expects_event(false, 0));
    for (int event = 0; event < 2; ++event) {
        for (int turn = 0; turn < SetupSteps::max_without_event; ++turn) {
            EXPECT(steps.expects_event(true, 0));
        }
        EXPECT(!steps.expects_event(true, 0));
        EXPECT(!steps.expects_event(true, 0));
        EXPECT(steps.expects_event(true, 1));
    }
    EXPECT(!steps.expects_event(false, 1));
}

void test_one_thread_at_a_time_attends_to_its_connect_until_no_event_comes() {
    const std::shared_ptr<Listener> listener = listener_for(1);
    Transport& transport = listener->transport();
    SetupAttendant second(Library::get().service());
    {
        SetupAttendant first(Library::get().service());
        first.begin(transport);
        second.begin(transport);
        EXPECT(first.fd() >= 0);
        EXPECT_EQ(second.fd(), -1);
        EXPECT(second.may_sleep());
    }
    second.begin(transport);
    for (int turn = 0; turn < SetupSteps::max_without_event; ++turn) {
        second.dispatch_events();
        EXPECT(second.fd() >= 0);
    }
    second.dispatch_events();
    EXPECT_EQ(second.fd(), -1);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_a_port_that_was_left_open_is_chosen_and_held),
        FABTEST(test_an_address_that_is_not_held_is_any),
        FABTEST(test_what_was_held_is_held_again_beside_a_connection_that_lives_on),
        FABTEST(test_a_listener_of_the_kernels_on_the_address_is_seen),
        FABTEST(test_each_attempt_has_a_number_and_is_reported_once),
        FABTEST(test_a_set_is_readable_from_the_end_of_an_attempt_until_it_was_seen),
        FABTEST(test_a_further_attempt_is_not_over_with_the_one_before),
        FABTEST(test_an_attempt_that_cannot_be_shown_says_why),
        FABTEST(test_the_last_connection_is_the_present_one_until_it_is_given_up),
        FABTEST(test_attempts_that_failed_go_before_the_next_one),
        FABTEST(test_connections_stay_while_another_call_handles_them),
        FABTEST(test_a_listener_has_the_port_that_the_core_chose),
        FABTEST(test_accepts_make_the_descriptor_readable_and_come_in_order),
        FABTEST(test_one_that_failed_while_it_opened_is_not_accepted),
        FABTEST(test_requests_wait_in_order_for_room_in_the_backlog),
        FABTEST(test_the_first_loss_is_the_error_and_is_told_once),
        FABTEST(test_the_next_connection_begins_with_the_error_that_was_not_told),
        FABTEST(test_keepalive_asks_nothing_of_a_connection_until_it_is_set),
        FABTEST(test_a_user_timeout_says_how_often_an_idle_peer_is_asked),
        FABTEST(test_sizes_are_bounded_and_given_to_the_next_connection),
        FABTEST(test_an_accepted_socket_has_the_values_of_its_listener),
        FABTEST(test_a_route_is_kept_as_it_is_up_to_a_length),
        FABTEST(test_connections_that_are_set_up_are_watched_for_some_steps_after_each_event),
        FABTEST(test_one_thread_at_a_time_attends_to_its_connect_until_no_event_comes),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
