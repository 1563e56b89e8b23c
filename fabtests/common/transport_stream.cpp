// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
#include "fabtests/common/transport.hpp"

namespace fabtests {

namespace {

class StreamTransport : public Transport {
  public:
    explicit StreamTransport(const Options& options) : host_(request_for(options)) {
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
    Host host_;
    std::unique_ptr<Stream> stream_;
};

} // namespace

Request request_for(const Options& options) {
    Request request;
    if (options.kind() == Kind::core) {
        request.type = FI_EP_MSG;
        request.provider = options.provider;
    } else {
        request.core = options.core;
    }
    request.domain = options.domain;
    request.iwarp = options.iwarp;
    request.source = !options.is_client();
    request.node = request.source ? options.source : options.host;
    request.service = options.port;
    return request;
}

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
