# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""PostgreSQL: a process for each connection, which waits with epoll; psql and pgbench."""

import atexit
import functools
import glob
import os
import re
import shutil
import signal
import subprocess
import tempfile

from harness import Failed, case

USER = "nobody"


def command(name):
    """Debian has most of them outside of PATH."""
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/" + name))
    return found[-1] if found else shutil.which(name)


def as_user(argv):
    """The server refuses to run as root."""
    if os.geteuid() != 0:
        return argv
    return ["setpriv", "--reuid=" + USER, "--regid=nogroup", "--clear-groups", *argv]


def owned(folder):
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if os.geteuid() == 0:
        shutil.chown(folder, USER, "nogroup")
    return folder


@functools.lru_cache(maxsize=None)
def cluster():
    """An empty cluster, which each trial copies."""
    folder = tempfile.mkdtemp(prefix="programs.")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.chmod(folder, 0o755)
    data = owned(os.path.join(folder, "data"))
    made = subprocess.run(as_user([command("initdb"), "-D", data, "-U", "tester", "-A", "trust", "--locale=C", "-E", "UTF8",
                                   "--no-sync", "--no-instructions"]), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          stdin=subprocess.DEVNULL, cwd="/", text=True, timeout=60, check=False)
    if made.returncode != 0:
        raise Failed("initdb: " + made.stdout[-400:])
    with open(os.path.join(data, "pg_hba.conf"), "a") as file:
        file.write("host all all all trust\n")  # also from the addresses of devices
    return data


def serve(trial):
    parent = owned(trial.path("cluster"))
    data = os.path.join(parent, "data")
    subprocess.run(as_user(["cp", "-a", cluster(), data]), check=True, cwd="/")
    settings = ["listen_addresses=" + trial.address, "port=%d" % trial.port, "unix_socket_directories=", "fsync=off",
                "log_checkpoints=off", "shared_buffers=32MB", "timezone=UTC", "log_timezone=UTC"]
    server = trial.serve(as_user([command("postgres"), "-D", data, *("--" + setting for setting in settings)]),
                         label="postgres")
    # It listens before it lets anybody in.
    while "ready to accept connections" not in server.errors():
        trial.expect(server.process.poll() is None, server.last_words)
        trial.wait_until(lambda: server.process.poll() is not None or "ready to accept" in server.errors(), "ready server")
    return server


def client(trial, name, *words, **options):
    options.setdefault("label", name)
    return trial.run([command(name), "-h", trial.address, "-p", trial.port, "-U", "tester", *words], **options)


def sql(trial, *words, **options):
    return client(trial, "psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", *words, "postgres", **options)


def end(trial, server):
    """SIGTERM lets sessions end by themselves: one that does not hear that its client is gone is a fault."""
    trial.stop(server, signal.SIGTERM)


def pgbench(trial, *words):
    ran = client(trial, "pgbench", *words, "postgres")
    failed = re.search(r"number of failed transactions: (\d+)", ran.text())
    trial.expect(failed and failed.group(1) == "0", ran.text)
    return (int(re.search(r"number of transactions actually processed: (\d+)", ran.text()).group(1)),
            float(re.search(r"^tps = ([0-9.]+)", ran.text(), re.M).group(1)))


def initialize(trial):
    # Data are made by the server: the client's COPY is the matter of another case.
    client(trial, "pgbench", "-i", "-I", "dtGvp", "-q", "postgres")


NEEDS = ["psql", "pg_ctlcluster"]


@case("postgresql", "pgbench -S: 8 clients; a connection for each of 200 transactions", NEEDS, lab=True, limit=180)
def select_only(trial):
    server = serve(trial)
    initialize(trial)
    done, _ = pgbench(trial, "-S", "-n", "-c", "8", "-j", "2", "-t", "1000")
    trial.expect(done == 8000, "%d transactions" % done)
    trial.expect_upgraded(8)
    done, _ = pgbench(trial, "-S", "-n", "-C", "-c", "4", "-t", "50")
    trial.expect(done == 200, "%d transactions with a connection each" % done)
    end(trial, server)


@case("postgresql", "pgbench, TPC-B: 4 clients, simple and prepared; the balances agree", NEEDS)
def tpc_b(trial):
    server = serve(trial)
    initialize(trial)
    pgbench(trial, "-n", "-c", "4", "-t", "200")
    pgbench(trial, "-n", "-c", "4", "-t", "200", "-M", "prepared")
    trial.expect_upgraded(8)
    sums = sql(trial, "-c", "select (select sum(abalance) from pgbench_accounts), (select sum(bbalance) from pgbench_branches),"
               " (select sum(tbalance) from pgbench_tellers), (select sum(delta) from pgbench_history),"
               " (select count(*) from pgbench_history)").text().strip().split("|")
    trial.expect(len(set(sums[:4])) == 1 and sums[4] == "1600", lambda: "balances: %s" % sums)
    end(trial, server)


@case("postgresql", "COPY of 10 MB there and back, a cursor, 2,000 statements of one psql", NEEDS)
def copy(trial):
    server = serve(trial)
    rows = trial.path("rows")
    with open(rows, "w") as file:
        for i in range(100000):
            file.write("%d\t%s\n" % (i, ("row %d " % i) * 8))
    sql(trial, "-c", "create table t (id int primary key, words text)")
    with open(rows, "rb") as file:
        sql(trial, "-c", "copy t from stdin", stdin=file)
    back = sql(trial, "-c", "copy (select * from t order by id) to stdout")
    trial.expect_same(rows, back.out_path)
    many = trial.write("many.sql", "".join("select words from t where id = %d;\n" % i for i in range(2000)))
    answers = sql(trial, "-f", many)
    trial.expect(answers.text() == "".join(("row %d " % i) * 8 + "\n" for i in range(2000)), "an answer differs")
    by_cursor = sql(trial, "-v", "FETCH_COUNT=500", "-c", "select id from t order by id")
    trial.expect(by_cursor.text().split() == [str(i) for i in range(100000)], "the cursor's rows differ")
    trial.expect_upgraded(4)
    end(trial, server)


@case("postgresql", "a query that is cancelled, LISTEN and NOTIFY, an error", NEEDS)
def asynchronous(trial):
    server = serve(trial)
    # The cancel request has a connection of its own; statement_timeout ends the second.
    slow = trial.start([command("psql"), "-h", trial.address, "-p", trial.port, "-U", "tester", "-X", "-q", "-A", "-t",
                        "-c", "select count(*) from generate_series(1, 1000)", "-c", "select pg_sleep(30)", "postgres"],
                       label="sleeper")
    trial.wait_until(lambda: sql(trial, "-c", "select count(*) from pg_stat_activity where query like 'select pg_sleep%'",
                                 label="poll").text().strip() == "1", "sleeping query")
    slow.process.send_signal(signal.SIGINT)
    trial.expect(slow.wait() == 1, "the cancelled psql ended with %s" % slow.status)
    trial.expect("canceling statement due to user request" in slow.errors(), slow.errors)
    timed = sql(trial, "-c", "set statement_timeout = 100", "-c", "select pg_sleep(30)", status=1)
    trial.expect("canceling statement due to statement timeout" in timed.errors(), timed.errors)
    notified = sql(trial, "-c", "listen x", "-c", "select pg_notify('x', 'payload')", "-c", "select 1")
    trial.expect('notification "x" with payload "payload"' in notified.text(), notified.text)
    end(trial, server)
