// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The way of streams whose device has failed: by other devices of the same two hosts, under their addresses. Workers
// tell each other these addresses once they are proved (Kind::proved).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "preload/fabric/message.hpp"
#include "preload/rendezvous/ends.hpp"

namespace preload::fabric {

class OtherDevices {
  public:
    // How long the device that has worked is the first to be tried.
    static constexpr uint64_t preferred_for_ns = 60000000000U;

    using Found = std::vector<rendezvous::Address>;
    // find: this host's addresses that RDMA devices have.
    explicit OtherDevices(Found (*find)() = find_devices) : find_devices_(find) {}
    static Found find_devices();

    // This host's addresses of the same family that devices have, without `own` itself, which is no address of the
    // loopback interface. Looks for them if it has not yet, or if a stream has failed since.
    [[nodiscard]] OtherAddresses of_this_host(const rendezvous::Address& own, uint64_t now);
    void note_failure() { is_due_ = true; }

    // The far end of a connection to `peer` is proved, and has told these addresses. via: where its stream was
    // connected to, at the end that connects.
    void note_proved(const rendezvous::Address& peer, const OtherAddresses& others, const rendezvous::Address* via,
                     uint64_t now);
    // Where to connect to, one after the other; with the port of `peer`.
    [[nodiscard]] std::vector<rendezvous::Address> targets(const rendezvous::Address& peer, uint64_t now) const;
    // Whether `from` is `peer`, or was told by it. Ports do not matter.
    [[nodiscard]] bool is_of(const rendezvous::Address& from, const rendezvous::Address& peer) const;
    // Whether one was proved at this address: it has been told of this host's other devices.
    [[nodiscard]] bool knows(const rendezvous::Address& peer) const { return find(peer) != nullptr; }

  private:
    struct Peer {
        HostAddress address{};
        OtherAddresses others{};
        HostAddress preferred{};
        uint64_t preferred_until = 0;
    };
    [[nodiscard]] const Peer* find(const rendezvous::Address& peer) const;

    Found (*find_devices_)();
    Found own_;
    bool is_due_ = true;
    uint64_t again_at_ = 0;
    std::array<Peer, 64> peers_{}; // the most recent ones
    size_t made_ = 0;
};

} // namespace preload::fabric
