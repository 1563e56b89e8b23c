// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// A bare FI_EP_MSG endpoint of a core provider: the baseline for a stream over that core. A transfer is one
// fi_writedata (injected if it is small enough) into a buffer of the peer, as in fabtests' fi_rma_bw; completions at
// the initiator limit the number in flight. Where an immediate consumes a receive of its target (verbs), enough
// receives are posted, and posted again as they are consumed.
#include <algorithm>
#include <cstring>

#include <poll.h>
#include <rdma/fi_rma.h>

#include "fabtests/common/fabric.hpp"
#include "fabtests/common/transport.hpp"

namespace fabtests {

namespace {

constexpr size_t window = 64;    // transfers in flight
constexpr size_t receives = 256; // posted, on cores where such a write consumes a receive
constexpr size_t immediate_size = 4;

struct Remote {
    uint64_t address;
    uint64_t key;
};

class CoreTransport : public Transport {
  public:
    CoreTransport(const Options& options, size_t largest)
        : host_(request_for(options)), poll_(options.poll), tx_buffer_(largest), rx_buffer_(largest) {
        if (host_.info->domain_attr->cq_data_size < immediate_size) {
            throw std::runtime_error("a write carries no data on " + std::string(host_.info->domain_attr->name));
        }
        if (options.is_client()) {
            open_endpoint(host_.info.get());
            const Remote mine = my_region();
            check("fi_connect", fi_connect(ep_.get(), host_.info->dest_addr, &mine, sizeof(mine)));
            remember(host_.expect(FI_CONNECTED, &ep_->fid).data);
        } else {
            Listener listener(host_);
            announce_port(options, listener.port());
            const Event event = listener.request(options.timeout * 1000);
            const Info info(event.info);
            open_endpoint(info.get());
            remember(event.data);
            const Remote mine = my_region();
            check("fi_accept", fi_accept(ep_.get(), &mine, sizeof(mine)));
            host_.expect(FI_CONNECTED, &ep_->fid);
        }
    }

    void send(const void* data, size_t length) override {
        // An injected write has no completion, and on verbs keeps its queue entry until a later write has completed: so
        // one write out of several is not injected.
        const bool inject = length <= host_.info->tx_attr->inject_size && injected_ < window_ / 2;
        if (!inject) {
            while (sent_ - completed_ >= window_) {
                progress();
            }
        }
        for (;;) {
            const ssize_t ret = inject
                                    ? fi_inject_writedata(ep_.get(), data, length, ++data_, FI_ADDR_UNSPEC,
                                                          remote_.address, remote_.key)
                                    : fi_writedata(ep_.get(), tx_buffer_.data(), length, desc_, ++data_, FI_ADDR_UNSPEC,
                                                   remote_.address, remote_.key, &contexts_[sent_ % window_]);
            if (ret == 0) {
                break;
            }
            if (ret != -FI_EAGAIN) {
                check("fi_writedata", ret);
            }
            progress();
        }
        sent_ += inject ? 0 : 1;
        injected_ = inject ? injected_ + 1 : 0;
    }

    void recv(void* /*data*/, size_t /*length*/) override {
        while (arrived_ == taken_) {
            progress();
        }
        ++taken_;
    }

    void flush() override {
        while (sent_ != completed_) {
            progress();
        }
    }

  private:
    void open_endpoint(fi_info* info) {
        window_ = std::max<size_t>(std::min(window, info->tx_attr->size / 2), 1);
        fi_cq_attr attr{};
        attr.format = FI_CQ_FORMAT_DATA;
        attr.size = 4 * receives;
        attr.wait_obj = poll_ ? FI_WAIT_FD : FI_WAIT_NONE;
        fid_cq* cq = nullptr;
        check("fi_cq_open", fi_cq_open(host_.domain.get(), &attr, &cq, nullptr));
        cq_.reset(cq);
        fid_ep* ep = nullptr;
        check("fi_endpoint", fi_endpoint(host_.domain.get(), info, &ep, nullptr));
        ep_.reset(ep);
        check("fi_ep_bind", fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
        check("fi_ep_bind", fi_ep_bind(ep, &host_.eq->fid, 0));
        const int mode = host_.info->domain_attr->mr_mode;
        register_region(rx_buffer_, FI_REMOTE_WRITE, (mode & FI_MR_PROV_KEY) != 0 ? 0 : 1, rx_mr_);
        if ((mode & FI_MR_LOCAL) != 0) {
            register_region(tx_buffer_, FI_WRITE, 0, tx_mr_);
            desc_ = fi_mr_desc(tx_mr_.get());
        }
        check("fi_enable", fi_enable(ep));
        consumes_ = ((host_.info->mode | host_.info->rx_attr->mode) & FI_RX_CQ_DATA) != 0;
        const size_t count = consumes_ ? std::min(receives, info->rx_attr->size) : 0;
        for (size_t i = 0; i < count; ++i) {
            post_receive(&receive_contexts_[i]);
        }
    }

    void register_region(std::vector<std::byte>& buffer, uint64_t access, uint64_t key, Owned<fid_mr>& out) {
        fid_mr* mr = nullptr;
        check("fi_mr_reg",
              fi_mr_reg(host_.domain.get(), buffer.data(), buffer.size(), access, 0, key, 0, &mr, nullptr));
        out.reset(mr);
    }

    [[nodiscard]] Remote my_region() const {
        const bool virt = (host_.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
        return {virt ? reinterpret_cast<uint64_t>(rx_buffer_.data()) : 0, fi_mr_key(rx_mr_.get())};
    }

    void remember(const std::vector<std::byte>& data) {
        if (data.size() < sizeof(remote_)) {
            throw std::runtime_error("the peer told nothing of its buffer");
        }
        memcpy(&remote_, data.data(), sizeof(remote_));
    }

    void post_receive(fi_context2* context) {
        check("fi_recv", fi_recv(ep_.get(), nullptr, 0, nullptr, FI_ADDR_UNSPEC, context));
    }

    void progress() {
        fi_cq_data_entry entries[16];
        const ssize_t count = fi_cq_read(cq_.get(), entries, 16);
        if (count == -FI_EAGAIN) {
            wait();
            return;
        }
        if (count == -FI_EAVAIL) {
            fi_cq_err_entry error{};
            fi_cq_readerr(cq_.get(), &error, 0);
            throw Error("completion", -error.err);
        }
        check("fi_cq_read", count);
        for (ssize_t i = 0; i < count; ++i) {
            if ((entries[i].flags & (FI_WRITE | FI_SEND)) != 0) {
                ++completed_;
            } else {
                ++arrived_;
                if (consumes_) {
                    post_receive(static_cast<fi_context2*>(entries[i].op_context));
                }
            }
        }
    }

    void wait() {
        if (!poll_) {
            return;
        }
        fid* fids[] = {&cq_->fid};
        if (fi_trywait(host_.fabric.get(), fids, 1) == 0) {
            pollfd fd{-1, POLLIN, 0};
            check("fi_control", fi_control(&cq_->fid, FI_GETWAIT, &fd.fd));
            ::poll(&fd, 1, -1);
        }
    }

    Host host_;
    bool poll_;
    bool consumes_ = false;
    std::vector<std::byte> tx_buffer_;
    std::vector<std::byte> rx_buffer_;
    Owned<fid_mr> tx_mr_;
    Owned<fid_mr> rx_mr_;
    void* desc_ = nullptr;
    Owned<fid_cq> cq_;
    Owned<fid_ep> ep_;
    Remote remote_{};
    std::vector<fi_context2> contexts_ = std::vector<fi_context2>(window);
    std::vector<fi_context2> receive_contexts_ = std::vector<fi_context2>(receives);
    uint32_t data_ = 0;
    size_t window_ = window;
    size_t injected_ = 0; // since the last write that was not injected
    uint64_t sent_ = 0;
    uint64_t completed_ = 0;
    uint64_t arrived_ = 0;
    uint64_t taken_ = 0;
};

} // namespace

std::unique_ptr<Transport> open_core(const Options& options, size_t largest) {
    return std::make_unique<CoreTransport>(options, largest);
}

} // namespace fabtests
