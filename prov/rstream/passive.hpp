// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Passive endpoints and the connection requests that arrive on them. fi_passive_ep(3), fi_cm(3).
#pragma once

#include "prov/rstream/eq.hpp"
#include "prov/rstream/fabric.hpp"
#include "prov/rstream/listen_queue.hpp"
#include "prov/rstream/wire/hello.hpp"

namespace rstream {

class PassiveEndpoint final : public fid_pep, public EventHandler {
  public:
    static int open(Fabric& fabric, const fi_info& info, void* context, fid_pep** out);

    int bind(AnyFid* other, uint64_t flags);
    int control(int command, void* arg);
    int set_name(const void* addr, size_t length);
    int get_name(void* addr, size_t* length);
    int listen();
    int reject(const AnyFid* handle, std::span<const std::byte> data);
    void refuse(const ConnectionRequest& request);
    int get_option(int name, void* value, size_t* length);
    int close();
    ~PassiveEndpoint() override = default;

    void on_core_event(uint32_t event, const fi_eq_cm_entry& entry, std::span<const std::byte> data) override;
    void on_core_error(const fi_eq_err_entry& entry) override;
    void progress() override { listen_queue_->progress(); }
    int arm() override { return listen_queue_->arm(); }
    void on_deadline() override { listen_queue_->on_deadline(); }

  private:
    explicit PassiveEndpoint(Fabric& fabric) : fid_pep{}, fabric_(fabric) {}
    [[nodiscard]] size_t max_waiting() const;
    void warn_of_strangers() const;
    int on_request(Info core_info, std::span<const std::byte> data);
    void turn_down(AnyFid* core_handle, wire::Reject::Reason reason); // as reject_core; a failure is only logged
    int reject_core(AnyFid* core_handle, wire::Reject::Reason reason, std::span<const std::byte> data);

    Fabric& fabric_;
    Info info_;
    EventQueue* queue_ = nullptr;
    std::unique_ptr<ListenQueue> listen_queue_; // if CoreProperties::guarded_listeners
    Owned<fid_pep> core_;                       // closed before the queue that it is bound to
    bool listening_ = false;
    CoreProperties properties_;
    int backlog_ = 0; // max pending requests; 0: limited by the number of fds
};

} // namespace rstream
