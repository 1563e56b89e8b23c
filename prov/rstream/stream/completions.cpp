// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "prov/rstream/stream/completions.hpp"

#include <algorithm>
#include <utility>

namespace rstream {

namespace {

constexpr size_t completion_batch = 16;
// Max batches of one call, so that its caller can react in between.
constexpr int max_batches = 8;

} // namespace

int Completions::post_receive(size_t slot) {
    return static_cast<int>(fi_recv(core_.get(), messages_.receive(slot), MessageSlots::slot_size, messages_.desc(),
                                    FI_ADDR_UNSPEC, messages_.context(slot)));
}

int Completions::post_receives() {
    int ret = 0;
    for (size_t slot = 0; ret == 0 && slot < messages_.receives(); ++slot) {
        ret = post_receive(slot);
    }
    return ret;
}

bool Completions::events_due() { return events_interval_.due(std::chrono::steady_clock::now); }

Completions::Drained Completions::drain() {
    const base::Guard lock(mutex_);
    return drain_locked();
}

void Completions::drain_all() {
    const base::Guard lock(mutex_);
    while (drain_locked() == Drained::not_all) {
    }
}

// Once an error was found, there is no limit: a connection that fails brings no more than what had arrived.
Completions::Drained Completions::drain_locked() {
    fi_cq_data_entry entries[completion_batch];
    Drained drained = Drained::nothing;
    for (int batch = 0; batch < max_batches || loss_.error != 0; ++batch) {
        const ssize_t count = fi_cq_read(core_.completions(), entries, completion_batch);
        if (count == -FI_EAVAIL) {
            drained = Drained::something;
            if (!on_error()) {
                return drained;
            }
            continue;
        }
        if (count <= 0) {
            if (count != 0 && count != -FI_EAGAIN) {
                note_loss(FI_ECONNRESET, "the core's completion queue fails");
            }
            report_loss();
            return drained;
        }
        drained = Drained::something;
        for (ssize_t i = 0; i < count; ++i) {
            on_completion(entries[i]);
        }
        if (static_cast<size_t>(count) < completion_batch && loss_.error == 0) {
            return drained;
        }
    }
    return Drained::not_all;
}

void Completions::note_loss(int error, const char* why) {
    if (loss_.error == 0) {
        loss_ = {error, why};
    }
}

void Completions::report_loss() {
    if (const Loss loss = std::exchange(loss_, {}); loss.error != 0) {
        events_.on_lost(loss.error, loss.why);
    }
}

void Completions::drop() {
    const base::Guard lock(mutex_);
    fi_cq_data_entry entries[completion_batch];
    for (;;) {
        const ssize_t count = fi_cq_read(core_.completions(), entries, completion_batch);
        fi_cq_err_entry error{};
        if (count == 0 || (count < 0 && (count != -FI_EAVAIL || fi_cq_readerr(core_.completions(), &error, 0) < 0))) {
            return;
        }
    }
}

void Completions::on_completion(const fi_cq_data_entry& entry) {
    if (keepalive_.take_answer(entry.op_context)) {
        return;
    }
    // Our own operations first: some cores report an initiator's write with FI_REMOTE_CQ_DATA too.
    if ((entry.flags & (FI_WRITE | FI_SEND)) != 0) {
        transmit_.complete(entry.op_context);
        return;
    }
    on_arrival(entry);
}

void Completions::on_arrival(const fi_cq_data_entry& entry) {
    keepalive_.on_arrival();
    const auto slot = messages_.slot_of(entry.op_context);
    const char* broken = nullptr;
    if ((entry.flags & FI_REMOTE_CQ_DATA) != 0) {
        broken = link_.headers() ? "an immediate where headers were agreed on" : link_.on_data(entry.data);
    } else if ((entry.flags & FI_RECV) != 0 && slot) {
        broken = link_.on_message({messages_.receive(*slot), std::min(entry.len, MessageSlots::slot_size)});
    } else {
        return;
    }
    if (broken != nullptr) {
        events_.on_violation(broken);
        return;
    }
    if (link_.peer_finished() || link_.peer_reset()) {
        events_.on_peer_end();
    }
    if (slot) {
        if (const int ret = post_receive(*slot); ret != 0) {
            note_loss(FI_ECONNRESET, "a receive could not be posted");
        }
    }
}

// False: the connection was reported as over, and nothing further is read.
bool Completions::on_error() {
    fi_cq_err_entry error{};
    if (fi_cq_readerr(core_.completions(), &error, 0) < 0) {
        note_loss(FI_ECONNRESET, "the core's completion queue fails");
        report_loss();
        return false;
    }
    if (error.err == FI_ETRUNC) {
        loss_ = {};
        events_.on_violation("a message longer than any that is known");
        return false;
    }
    note_loss(error.err == FI_ETIMEDOUT ? FI_ETIMEDOUT : FI_ECONNRESET, fi_strerror(error.err));
    return true;
}

} // namespace rstream
