# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""MariaDB: a thread for each connection, poll, TCP_NODELAY and SO_KEEPALIVE; its client."""

import atexit
import functools
import os
import shutil
import subprocess
import tempfile

from harness import Failed, case

NEEDS = ["mariadbd", "mariadb-install-db", "mariadb"]


def user():
    return ["--user=root"] if os.geteuid() == 0 else []


@functools.lru_cache(maxsize=None)
def data_folder():
    """An empty database, which each trial copies."""
    folder = tempfile.mkdtemp(prefix="programs.")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    made = subprocess.run(["mariadb-install-db", "--no-defaults", "--datadir=" + folder + "/data", "--skip-test-db",
                           "--auth-root-authentication-method=normal", "--skip-name-resolve",
                           "--innodb-flush-method=nosync", *user()],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, timeout=90,
                          check=False)
    if made.returncode != 0:
        raise Failed("mariadb-install-db: " + made.stdout[-600:])
    return folder + "/data"


def client(trial, **options):
    return trial.run(["mariadb", "--no-defaults", "-h", trial.address, "-P", trial.port, "--protocol=tcp", "-u", "root",
                      "--skip-ssl", "-N", "-B"], label="client", **options)


@case("mariadb", "3,000 statements of one client, a table of 6 MB by another, two clients at once", NEEDS, limit=120)
def statements(trial):
    trial.varying.append(r"server_uid \S+")
    shutil.copytree(data_folder(), trial.path("data"))
    server = trial.serve(["mariadbd", "--no-defaults", "--datadir=" + trial.path("data"), "--bind-address=" + trial.address,
                          "--port=%d" % trial.port, "--socket=" + trial.path("socket"), "--skip-name-resolve",
                          "--innodb-flush-method=nosync", "--innodb-flush-log-at-trx-commit=0", "--log-warnings=1",
                          "--pid-file=" + trial.path("pid"), *user()], label="mariadbd")

    def batch(name, text):
        with open(trial.write(name, text), "rb") as file:
            return client(trial, stdin=file).text()

    batch("create", "create database d; create table d.t (id int primary key, words text) engine=InnoDB;")
    rows = "".join("insert into d.t values (%d, repeat('row %d ', 100));\nselect id, length(words) from d.t where id = %d;\n"
                   % (i, i, i) for i in range(1500))
    answers = batch("rows", "set autocommit=0;\n" + rows + "commit;\n")
    trial.expect(answers == "".join("%d\t%d\n" % (i, 100 * len("row %d " % i)) for i in range(1500)), "an answer differs")
    table = batch("table", "select a.id, b.words from d.t a join d.t b on b.id = a.id %% 1500 order by a.id;\n".replace("%%", "%")
                  + "select repeat('x', 5000000);\n")
    trial.expect(table == "".join("%d\t%s\n" % (i, ("row %d " % i) * 100) for i in range(1500)) + "x" * 5000000 + "\n",
                 "the table differs")
    loop = trial.write("loop", "".join("select %d, count(*) from d.t where id < %d;\n" % (i, i) for i in range(500)))
    both = []
    for _ in range(2):
        with open(loop, "rb") as file:
            both.append(trial.start(["mariadb", "--no-defaults", "-h", trial.address, "-P", trial.port, "--protocol=tcp", "-u",
                                     "root", "--skip-ssl", "-N", "-B"], label="client", stdin=file))
    for one in both:
        one.wait()
        trial.expect_ended(one)
        trial.expect(one.text() == "".join("%d\t%d\n" % (i, i) for i in range(500)), "another count")
    trial.expect_upgraded(3)
    trial.stop(server)
