// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// fi_stream_msg: the smallest thing that a stream can do. Hello from both ends, then the end of the stream from both.
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "fabtests/common/transport.hpp"

using namespace fabtests;

namespace {

void exchange(Stream& stream, const char* mine, const char* expected) {
    stream.send_all(mine, strlen(mine));
    check("fi_shutdown", fi_shutdown(stream.get(), FI_RSTREAM_SHUT_WR));
    std::string got(strlen(expected) + 1, '\0');
    const size_t length = stream.recv_all(got.data(), got.size());
    got.resize(length);
    if (got != expected) {
        throw std::runtime_error("received \"" + got + "\" instead of \"" + expected + "\"");
    }
    printf("received: %s\n", got.c_str());
}

} // namespace

int main(int argc, char** argv) {
    const Options o = parse_options(argc, argv, "fi_stream_msg: hello, both ways", {});
    return run(o, [&] {
        if (o.kind() != Kind::stream) {
            throw std::runtime_error("only rstream has streams");
        }
        Host host(request_for(o));
        if (o.is_client()) {
            Stream stream(host);
            stream.set_buffers(o.buffers);
            stream.connect(nullptr, "client");
            const Event connected = host.expect(FI_CONNECTED, &stream.get()->fid);
            printf("connected over %s to: %s\n", host.info->fabric_attr->name, connected.text().c_str());
            exchange(stream, "Hello from the client", "Hello from the server");
            return 0;
        }
        Listener listener(host);
        announce_port(o, listener.port());
        const Event event = listener.request(o.timeout * 1000);
        const Info info(event.info);
        printf("request from: %s\n", event.text().c_str());
        Stream stream(host, info.get());
        stream.set_buffers(o.buffers);
        stream.accept("server");
        host.expect(FI_CONNECTED, &stream.get()->fid);
        exchange(stream, "Hello from the server", "Hello from the client");
        return 0;
    });
}
