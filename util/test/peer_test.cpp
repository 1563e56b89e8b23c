// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// One connection of ucmatose on a fabric that does what the test says, in the order that it says.
#include <deque>

#include "fabtests/common/test.hpp"
#include "util/ucmatose/peer.hpp"

namespace {

using namespace util;

class PlainMemory : public Memory {
  public:
    explicit PlainMemory(size_t size) : bytes_(size) {}
    std::span<std::byte> bytes() override { return bytes_; }
    [[nodiscard]] uint64_t remote_address() const override { return 0; }
    [[nodiscard]] uint64_t remote_key() const override { return 0; }

  private:
    Bytes bytes_;
};

// Operations that are begun, and those that the test completes.
struct Script {
    size_t sends = 0;
    size_t receives = 0;
    std::deque<Completion> done;

    void complete(Operation operation, size_t length, size_t times) {
        done.insert(done.end(), times, {operation, length, false, {}});
    }
    void flush(Operation operation) { done.push_back({operation, 0, true, {}}); }
};

class ScriptedConnection : public Connection {
  public:
    explicit ScriptedConnection(Script& script) : script_(script) {}
    bool may_sleep() override { return script_.done.empty(); }
    void add_to(std::vector<pollfd>& /*descriptors*/) const override {}
    void make_queues(const QueueSizes& /*sizes*/) override {}
    std::unique_ptr<Memory> allocate(size_t size, Access /*access*/) override {
        return std::make_unique<PlainMemory>(size);
    }
    void receive(Memory& /*memory*/, size_t /*length*/) override { ++script_.receives; }
    void send(Memory& /*memory*/, size_t /*length*/) override { ++script_.sends; }
    void read(Memory& /*memory*/, size_t /*length*/, const RemoteBuffer& /*from*/) override {}
    void write(Memory& /*memory*/, size_t /*length*/, const RemoteBuffer& /*to*/) override {}
    std::optional<Completion> completion() override {
        if (script_.done.empty()) {
            return std::nullopt;
        }
        Completion first = std::move(script_.done.front());
        script_.done.pop_front();
        return first;
    }
    void connect(std::span<const std::byte> /*data*/) override {}
    void accept(std::span<const std::byte> /*data*/) override {}
    void reject(std::span<const std::byte> /*data*/) override {}
    void disconnect() override {}
    [[nodiscard]] std::string peer() const override { return "scripted"; }
    [[nodiscard]] size_t max_message() const override { return 1 << 20; }
    [[nodiscard]] size_t max_sends() const override { return 1024; }
    [[nodiscard]] size_t max_receives() const override { return 1024; }
    [[nodiscard]] bool waits_for_receives() const override { return true; }

  private:
    Script& script_;
};

ucmatose::Options ten_messages() {
    ucmatose::Options options;
    options.server = "scripted";
    options.count = 10;
    options.size = 100;
    return options;
}

// A client that has received all, and has sent all but for the last three acknowledgements.
struct Client {
    Client() {
        peer.establish();
        script.complete(Operation::receive, 100, 10);
        peer.progress();
        peer.start_sending();
        EXPECT_EQ(script.sends, 10U);
        script.complete(Operation::send, 0, 7);
        peer.progress();
        EXPECT(peer.received_all() && !peer.sent_all());
    }

    Script script;
    const ucmatose::Options options = ten_messages();
    ucmatose::Peer peer{options, std::make_unique<ScriptedConnection>(script), 1};
};

void test_an_end_that_overtakes_the_last_acknowledgements_is_no_loss() {
    Client client;
    client.peer.disconnected = true;
    EXPECT(!client.peer.lost());
    client.script.complete(Operation::send, 0, 3);
    client.peer.progress();
    EXPECT(client.peer.sent_all() && !client.peer.lost());
}

void test_an_end_in_front_of_sends_that_are_flushed_is_a_loss() {
    Client client;
    client.peer.disconnected = true;
    client.script.complete(Operation::send, 0, 1);
    client.script.flush(Operation::send);
    client.peer.progress();
    EXPECT(client.peer.lost());
}

void test_receives_that_are_flushed_at_the_end_are_no_loss() {
    Client client;
    client.script.flush(Operation::receive);
    client.script.complete(Operation::send, 0, 3);
    client.peer.progress();
    EXPECT(client.peer.disconnected && client.peer.sent_all() && !client.peer.lost());
}

void test_an_end_before_all_has_come_is_a_loss() {
    Script script;
    const ucmatose::Options options = ten_messages();
    ucmatose::Peer peer(options, std::make_unique<ScriptedConnection>(script), 1);
    peer.establish();
    EXPECT_EQ(script.receives, 11U);
    script.complete(Operation::receive, 100, 9);
    peer.progress();
    EXPECT(!peer.lost());
    peer.disconnected = true;
    EXPECT(peer.lost());
}

} // namespace

int main() {
    const CMUnitTest tests[] = {
        FABTEST(test_an_end_that_overtakes_the_last_acknowledgements_is_no_loss),
        FABTEST(test_an_end_in_front_of_sends_that_are_flushed_is_a_loss),
        FABTEST(test_receives_that_are_flushed_at_the_end_are_no_loss),
        FABTEST(test_an_end_before_all_has_come_is_a_loss),
    };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests_name("peer", tests, nullptr, nullptr);
}
