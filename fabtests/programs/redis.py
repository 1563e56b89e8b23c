# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""Redis: one thread and epoll; its client; its benchmark with 50 connections."""

from harness import case

NEEDS = ["redis-server", "redis-cli", "redis-benchmark"]


def serve(trial):
    return trial.serve(["redis-server", "--bind", trial.address, "--port", trial.port, "--save", "", "--appendonly", "no",
                        "--protected-mode", "no", "--dir", trial.folder])


def cli(trial, *words, **options):
    return trial.run(["redis-cli", "-h", trial.address, "-p", trial.port, *words], **options)


@case("redis", "redis-cli: values small and large, a script, an error", NEEDS, lab=True)
def client(trial):
    server = serve(trial)
    trial.expect(cli(trial, "ping").text() == "PONG\n", "no PONG")
    cli(trial, "set", "key", "a value")
    trial.expect(cli(trial, "get", "key").text() == "a value\n", "another value came back")
    original = trial.make_file("original", trial.scale(8, 1) << 20)
    with open(original, "rb") as file:
        cli(trial, "-x", "set", "large", stdin=file)
    copy = cli(trial, "--raw", "get", "large")
    with open(original, "rb") as file:
        trial.expect(copy.output() == file.read() + b"\n", "the large value differs (%d bytes)" % len(copy.output()))
    loop = "for i = 1, 1000 do redis.call('rpush', 'list', i) end return redis.call('llen', 'list')"
    trial.expect(cli(trial, "eval", loop, "0").text() == "1000\n", "the script gave something else")
    trial.expect(cli(trial, "lrange", "list", "0", "-1").text().split() == [str(i) for i in range(1, 1001)],
                 "the list differs")
    trial.expect("ERR unknown command" in cli(trial, "nonsense").text(), "an unknown command is not refused")
    trial.stop(server)


def benchmark(trial, requests, clients, *options):
    server = serve(trial)
    ran = trial.run(["redis-benchmark", "-h", trial.address, "-p", trial.port, "-n", requests, "-c", clients,
                     "--csv", *options])
    rows = [row for row in ran.text().splitlines() if row.startswith('"') and not row.startswith('"test"')]
    trial.expect("error" not in ran.text().lower(), ran.text)
    handled = cli(trial, "info", "stats").text()
    total = int(handled.split("total_commands_processed:")[1].split()[0])
    trial.expect(total >= requests * len(rows), "%d commands for %d tests of %d" % (total, len(rows), requests))
    trial.stop(server)
    trial.expect_upgraded(clients)
    return len(rows)


@case("redis", "redis-benchmark: all its tests, 50 clients", NEEDS, limit=120)
def all_tests(trial):
    rows = benchmark(trial, 5000, 50)
    trial.expect(rows >= 19, "%d tests ran" % rows)


@case("redis", "redis-benchmark: pipelines of 16", NEEDS, lab=True, limit=120)
def pipeline(trial):
    benchmark(trial, trial.scale(100000, 60000), 50, "-P", "16", "-t", "set,get,incr,lpush,lpop")


@case("redis", "redis-benchmark: values of 64 KiB", NEEDS)
def large(trial):
    benchmark(trial, 2000, 20, "-d", "65536", "-t", "set,get")
