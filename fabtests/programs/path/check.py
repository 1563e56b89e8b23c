# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""Each mode of path_bench with few messages, on kernel TCP and under rsrun, and compare-path with one case. Prints TAP.

An upgrade takes the time that two service threads take to meet, so a run that ended before is repeated with more exchanges.
"""

import json
import math
import os
import subprocess
import sys

sys.dont_write_bytecode = True
PROGRAMS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, PROGRAMS)
import harness  # pylint: disable=wrong-import-position

BUILD = os.path.abspath(os.environ.get("FABTESTS_BIN", "."))
PROGRAM = os.path.join(BUILD, "fabtests/programs/path_bench")
PATIENCE = float(os.environ.get("FABTESTS_PATIENCE", "1"))
LIMIT = 60
DELAYS = {"events": 0, "median_us": 0, "p99_us": 0, "max_us": 0}

# Options, what the object has (a number, a text, or an object of those), and how many connections there are.
PINGPONG = {"mode": "", "size": 0, "wait": "", "iterations": 0, "median_us": 0, "p99_us": 0, "mean_us": 0}
STREAM = {"mode": "", "size": 0, "wait": "", "bytes": 0, "seconds": 0, "mb_per_s": 0}
MANY = {"mode": "", "connections": 0, "busy": 0, "requests": 0, "open_ms": 0, "requests_per_s": 0}
PAIRS = {"mode": "", "size": 0, "wait": "", "pairs": 0, "exchanges": 0, "exchanges_per_s": 0}
FAIRNESS = {"mode": "", "connections": 0, "duration_ms": 0, "requests_per_s": 0, "timer": DELAYS, "pipe": DELAYS,
            "socket": DELAYS}
WAITS = ("block", "spin", "poll", "epoll", "epoll-et")
MODES = [("pingpong --iterations 100 --wait " + wait, PINGPONG, 1) for wait in WAITS] + [
    ("pingpong --iterations 20 --size 1", PINGPONG, 1),
    ("pingpong --iterations 20 --size 1M --warm 20", PINGPONG, 1)] + [
    ("stream --bytes 4M --size 1000 --wait " + wait, STREAM, 1) for wait in WAITS] + [
    ("stream --bytes 16M --size 1M", STREAM, 1),
    ("many --connections 1 --duration 10", MANY, 1),
    ("many --connections 120 --duration 50", MANY, 120),
    ("pairs --pairs 2 --duration 50", PAIRS, 2),
    ("fairness --duration 500", FAIRNESS, 4)]


def check_object(found, expected):
    if set(found) != set(expected):
        raise harness.Failed("the object has %s, not %s" % (sorted(found), sorted(expected)))
    for name, kind in expected.items():
        if isinstance(kind, dict):
            check_object(found[name], kind)
        elif isinstance(kind, str) != isinstance(found[name], str):
            raise harness.Failed("%s is %r" % (name, found[name]))
        elif not isinstance(kind, str) and (not math.isfinite(found[name]) or found[name] < 0):
            raise harness.Failed("%s is %r" % (name, found[name]))


def run(suite, options, expected, under_rsrun):
    """How many connections were upgraded."""
    trial = harness.Trial(suite, harness.Case("", "", None, [], False, 2 * LIMIT, None), under_rsrun)
    trial.port = None  # the program picks it

    def body(one):
        ran = one.run([PROGRAM, *options, "--limit", int(LIMIT * PATIENCE)])
        one.expect(ran.errors() == "", lambda: "on stderr: " + ran.errors())
        check_object(json.loads(ran.text()), expected)

    try:
        trial.perform(body)
        return trial.upgraded(None)[0] if under_rsrun else 0
    finally:
        trial.remove()


def run_upgraded(suite, options, expected, connections):
    for warm in ([] if "--warm" in options else ["--warm", "200"], ["--warm", "2000"], ["--warm", "20000"]):
        upgraded = run(suite, options + warm, expected, True)
        if upgraded >= connections:
            return
    raise harness.Failed("%d of %d connections were upgraded" % (upgraded, connections))


def refused(options, words):
    """One line on stderr, and status 1."""
    ran = subprocess.run([PROGRAM, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                         timeout=LIMIT * PATIENCE)
    if ran.returncode != 1 or ran.stdout or ran.stderr.count("\n") != 1 or words not in ran.stderr:
        raise harness.Failed("it ended with %d and printed %r, %r" % (ran.returncode, ran.stdout, ran.stderr))


def compare_path():
    """One round of one case."""
    ran = subprocess.run([sys.executable, os.path.join(PROGRAMS, "compare-path"), "-B", BUILD, "-n", "1", "--json",
                          "pingpong 64 poll"], stdout=subprocess.PIPE, text=True, check=True, timeout=4 * LIMIT * PATIENCE)
    rows = json.loads(ran.stdout)["rows"]
    names = [row["name"] for row in rows]
    if names != ["pingpong 64 poll, median us", "pingpong 64 poll, p99 us"]:
        raise harness.Failed("the rows are %s" % names)
    for row in rows:
        if row["better"] != "lower" or set(row["ways"]) != {"kernel", "rsrun"} or row["connections"] != 1:
            raise harness.Failed("a row is %s" % row)


def upgrades_of_waiters(suite):
    """An upgrade finds each end asleep, awake or on its way there; a wake-up that is lost meanwhile is one for ever."""
    for _ in range(40):
        subprocess.run([suite.rsrun, PROGRAM, "pingpong", "--iterations", "100", "--warm", "200", "--wait", "epoll-et",
                        "--limit", str(int(LIMIT * PATIENCE))], stdout=subprocess.DEVNULL, check=True)


def tests(suite):
    """Names, and what is done."""
    for options, expected, connections in MODES:
        words = options.split()
        yield "%s on kernel TCP" % options, lambda w=words, e=expected: run(suite, w, e, False)
        # A library with a sanitizer in it can be loaded only by a program that has it too, and rsrun's has none.
        if not os.environ.get("SANITIZE_FLAGS"):
            yield ("%s under rsrun" % options,
                   lambda w=words, e=expected, c=connections: run_upgraded(suite, w, e, c))
    yield "an unknown mode", lambda: refused(["bench"], "bench: neither")
    yield "too many connections", lambda: refused(["many", "--connections", "1000000"], "hard limit")
    yield "a benchmark that does not end in time", lambda: refused(["pairs", "-d", "3600000", "-l", "1"], "within 1 s")
    if not os.environ.get("SANITIZE_FLAGS"):
        yield "40 upgrades under edge-triggered waiters", lambda: upgrades_of_waiters(suite)
        yield "compare-path", compare_path


def main():
    os.environ.pop("RSPRELOAD_UPGRADE", None)
    suite = harness.Suite(BUILD, harness.SHM, "127.0.0.1", False, PATIENCE)
    failed = number = 0
    for name, test in tests(suite):
        number += 1
        try:
            test()
            print("ok %d - %s" % (number, name), flush=True)
        except (harness.Failed, OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError) as error:
            failed += 1
            print("not ok %d - %s\n# %s" % (number, name, str(error).replace("\n", "\n# ")), flush=True)
    print("1..%d" % number)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
