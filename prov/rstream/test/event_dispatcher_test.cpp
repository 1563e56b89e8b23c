// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Event queues and their dispatcher with handlers of a test's own, whose queues are eventfds. On libfabric's tcp.
#include "prov/rstream/event_dispatcher.hpp"

#include <sys/eventfd.h>

#include "base/descriptor.hpp"
#include "fabtests/common/test.hpp"
#include "prov/rstream/eq.hpp"
#include "prov/rstream/fabric.hpp"

namespace {

using namespace fabtests;

class Queue : public rstream::EventHandler {
  public:
    explicit Queue(rstream::EventDispatcher& dispatcher) : dispatcher_(dispatcher) {
        const auto lock = dispatcher_.lock();
        EXPECT_EQ(dispatcher_.add_queue(fd_.get(), this), 0);
    }
    ~Queue() override {
        const auto lock = dispatcher_.lock();
        dispatcher_.remove_queue(fd_.get(), this);
    }
    Queue(const Queue&) = delete;
    Queue& operator=(const Queue&) = delete;

    void on_core_event(uint32_t /*event*/, const fi_eq_cm_entry& /*entry*/,
                       std::span<const std::byte> /*data*/) override {}
    void on_core_error(const fi_eq_err_entry& /*entry*/) override {}
    void progress() override {}
    int arm() override {
        ++arms;
        if (leaves) {
            dispatcher_.remove_queue(fd_.get(), this);
        }
        return Clock::now() < busy_until ? -FI_EAGAIN : result;
    }

    int arms = 0;
    bool leaves = false;          // when it is armed
    Clock::time_point busy_until; // there is activity all the time until then
    int result = 0;               // and this is the result then

  private:
    rstream::EventDispatcher& dispatcher_;
    base::Descriptor fd_{eventfd(0, EFD_CLOEXEC)};
};

struct Scene {
    Scene() {
        char name[] = "tcp@";
        fi_fabric_attr attr{};
        attr.name = name;
        attr.api_version = fi_version();
        fid_fabric* opened = nullptr;
        EXPECT_RESULT(rstream::Fabric::open(attr, nullptr, &opened), 0);
        fabric = static_cast<rstream::Fabric*>(opened);
        fi_eq_attr with_fd{};
        with_fd.wait_obj = FI_WAIT_FD;
        fid_eq* eq = nullptr;
        EXPECT_RESULT(fi_eq_open(opened, &with_fd, &eq, nullptr), 0);
        queue = static_cast<rstream::EventQueue*>(eq);
    }
    ~Scene() {
        (void)queue->close();
        (void)fabric->close();
    }
    Scene(const Scene&) = delete;
    Scene& operator=(const Scene&) = delete;
    [[nodiscard]] rstream::EventDispatcher& dispatcher() const { return *queue->dispatcher(); }
    [[nodiscard]] ssize_t sread(int timeout) const {
        fi_eq_entry entry{};
        uint32_t event = 0;
        return queue->sread(&event, &entry, sizeof(entry), timeout, 0);
    }

    rstream::Fabric* fabric = nullptr;
    rstream::EventQueue* queue = nullptr;
};

class Watched : public rstream::EventHandler {
  public:
    void on_core_event(uint32_t /*event*/, const fi_eq_cm_entry& /*entry*/,
                       std::span<const std::byte> /*data*/) override {}
    void on_core_error(const fi_eq_err_entry& /*entry*/) override {}
    void progress() override { ++turns; }
    void show() const { EXPECT_EQ(eventfd_write(fd.get(), 1), 0); }

    base::Descriptor fd{eventfd(0, EFD_CLOEXEC)};
    int turns = 0;
};

// A reader rests for some milliseconds while data flows. The steps of a connect are no data: it would be late by that.
void test_only_data_counts_as_moved() {
    const Scene scene;
    rstream::EventDispatcher& dispatcher = scene.dispatcher();
    Watched connecting;
    Watched connected;
    dispatcher.watch(connecting.fd.get(), &connecting);
    dispatcher.watch_data(connected.fd.get(), &connected);
    EXPECT_RESULT(dispatcher.arm(true), 0);
    EXPECT(!dispatcher.run().moved);
    connecting.show();
    EXPECT(!dispatcher.run().moved);
    EXPECT(connecting.turns != 0);
    connected.show();
    EXPECT(dispatcher.run().moved);
    EXPECT(connected.turns != 0);
    dispatcher.unwatch(connecting.fd.get(), &connecting);
    dispatcher.unwatch_data(&connected);
}

// As a listener does when no descriptor is left: it pauses.
void test_a_queue_may_leave_while_all_are_armed() {
    const Scene scene;
    Queue queues[] = {Queue(scene.dispatcher()), Queue(scene.dispatcher()), Queue(scene.dispatcher())};
    for (Queue& one : queues) {
        one.leaves = true;
    }
    EXPECT_RESULT(scene.dispatcher().arm(true), 0);
    for (const Queue& one : queues) {
        EXPECT_EQ(one.arms, 1);
    }
    EXPECT_RESULT(scene.dispatcher().arm(true), 0);
    EXPECT_EQ(queues[0].arms, 1);
}

void test_sread_returns_in_time_although_there_is_activity() {
    const Scene scene;
    Queue busy(scene.dispatcher());
    const auto start = Clock::now();
    busy.busy_until = start + std::chrono::milliseconds(patience(3000));
    EXPECT_RESULT(scene.sread(0), -FI_EAGAIN);
    EXPECT_RESULT(scene.sread(100), -FI_EAGAIN);
    EXPECT(Clock::now() - start >= std::chrono::milliseconds(100));
    EXPECT(milliseconds_since(start) < patience(2000));
}

void test_sread_returns_an_error_of_the_core() {
    const Scene scene;
    Queue broken(scene.dispatcher());
    broken.result = -FI_EINVAL;
    EXPECT_RESULT(scene.sread(100), -FI_EINVAL);
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_only_data_counts_as_moved),
        FABTEST(test_a_queue_may_leave_while_all_are_armed),
        FABTEST(test_sread_returns_in_time_although_there_is_activity),
        FABTEST(test_sread_returns_an_error_of_the_core),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
