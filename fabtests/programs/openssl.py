# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""openssl s_server and s_client: TLS over it, select on a terminal and a socket."""

import subprocess

from harness import case


def certificate(trial):
    trial.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
               "-subj", "/CN=localhost", "-keyout", "key.pem", "-out", "cert.pem"], label="req", rsrun=False)


@case("openssl", "s_client sends a file to s_server over TLS", ["openssl"])
def upload(trial):
    certificate(trial)
    original = trial.make_file("original", 4 << 20)
    # It ends with its input, which is therefore a pipe that stays open.
    server = trial.serve(["openssl", "s_server", "-accept", "%s:%d" % (trial.address, trial.port), "-cert", "cert.pem",
                          "-key", "key.pem", "-naccept", "1", "-quiet"], label="s_server", stdin=subprocess.PIPE)
    with open(original, "rb") as file:
        trial.run(["openssl", "s_client", "-connect", "%s:%d" % (trial.address, trial.port), "-CAfile", "cert.pem",
                   "-verify_return_error", "-quiet", "-no_ign_eof", "-nocommands"], label="s_client", stdin=file)
    server.wait()
    trial.expect_ended(server)
    trial.expect_upgraded()
    trial.expect_same(original, server.out_path)


@case("openssl", "s_server serves a file over TLS (-WWW)", ["openssl"])
def download(trial):
    certificate(trial)
    original = trial.make_file("original", 64 << 20)
    request = trial.write("request", "GET /original HTTP/1.0\r\n\r\n")
    server = trial.serve(["openssl", "s_server", "-accept", "%s:%d" % (trial.address, trial.port), "-cert", "cert.pem",
                          "-key", "key.pem", "-naccept", "1", "-WWW"], label="s_server")
    with open(request, "rb") as file:
        client = trial.run(["openssl", "s_client", "-connect", "%s:%d" % (trial.address, trial.port), "-CAfile",
                            "cert.pem", "-verify_return_error", "-quiet", "-ign_eof"], label="s_client", stdin=file)
    server.wait()
    trial.expect_ended(server)
    trial.expect_upgraded()
    with open(original, "rb") as file:
        trial.expect(client.output().endswith(b"\r\n\r\n" + file.read()), "the file differs")
