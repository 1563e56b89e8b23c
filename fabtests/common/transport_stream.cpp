// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "fabtests/common/fabric.hpp"
#include "fabtests/common/transport.hpp"

namespace fabtests {

namespace {

class StreamTransport : public Transport {
  public:
    explicit StreamTransport(const Options& options) : host_(request(options)) {
        if (options.is_client()) {
            stream_ = std::make_unique<Stream>(host_);
            stream_->set_buffers(options.buffers);
            stream_->connect(nullptr);
        } else {
            Listener listener(host_);
            announce_port(options, listener.port());
            const Info info(listener.request(options.timeout * 1000).info);
            stream_ = std::make_unique<Stream>(host_, info.get());
            stream_->set_buffers(options.buffers);
            stream_->accept();
        }
        host_.expect(FI_CONNECTED, &stream_->get()->fid);
        stream_->mode = options.poll ? Wait::poll : Wait::spin;
    }

    void send(const void* data, size_t length) override { stream_->send_all(data, length); }
    void recv(void* data, size_t length) override {
        if (stream_->recv_all(data, length) != length) {
            throw std::runtime_error("the peer ended the stream too early");
        }
    }
    void close() override { check("fi_shutdown", fi_shutdown(stream_->get(), 0)); }

  private:
    static Request request(const Options& options) {
        Request r;
        r.core = options.core;
        r.domain = options.domain;
        r.iwarp = options.iwarp;
        r.source = !options.is_client();
        r.node = r.source ? options.source : options.host;
        r.service = options.port;
        return r;
    }

    Host host_;
    std::unique_ptr<Stream> stream_;
};

} // namespace

std::unique_ptr<Transport> open_stream(const Options& options) { return std::make_unique<StreamTransport>(options); }

std::unique_ptr<Transport> open_transport(const Options& options, size_t largest) {
    switch (options.kind()) {
    case Kind::stream:
        return open_stream(options);
    case Kind::kernel:
        return open_kernel(options);
    case Kind::core:
        return open_core(options, largest);
    }
    return nullptr;
}

} // namespace fabtests
