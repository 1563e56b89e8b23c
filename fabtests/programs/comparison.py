# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
"""What the comparisons with kernel TCP share: runs in turns, medians and ratios of pairs, and how they are printed."""

import collections
import json
import os
import socket
import statistics
import sys

import harness

HIGHER, LOWER = "higher", "lower"


def measure(suite, body, way, explained=False, prepare=None):
    """Figures by their names, and how many connections were upgraded of how many."""
    trial = harness.Trial(suite, harness.Case("", "", body, [], False, 90, None), way == "rsrun")
    trial.explained = explained  # a record costs more than a short connection's calls
    trial.records_expected = False
    if prepare:
        prepare(trial, way)
    found, upgraded = {}, (0, 0)

    def perform(one):
        found.update(body(one))
        one.expected_upgrades.clear()

    try:
        trial.perform(perform)
        upgraded = trial.upgraded(trial.port)
    except (harness.Failed, OSError, ValueError, KeyError, AttributeError) as error:
        print("# %s: %s" % (way, str(error)[:300].replace("\n", " ")), file=sys.stderr)
        found = {}
    trial.remove()
    return found, upgraded


def in_turns(suite, bodies, ways, rounds, prepare=None):
    """For each figure's name what each round found: figures by the way. The order of the ways changes from round to round.
    A way that fails in the first two rounds of a body is not tried again there: it may take the whole time limit."""
    figures = {}
    failures = collections.Counter()
    for turn in range(rounds):
        for index, body in enumerate(bodies):
            pair = {}
            for way in ways if turn % 2 == 0 else reversed(ways):
                if turn >= 2 and failures[index, way] >= 2:
                    continue
                found = measure(suite, body, way, prepare=prepare)[0]
                failures[index, way] += not found
                for name, value in found.items():
                    pair.setdefault(name, {})[way] = value
            for name, by_way in pair.items():
                figures.setdefault(name, []).append(by_way)
    return figures


def upgrades(suite, bodies):
    """What a run with records says, which does not count: for each figure's name, connections upgraded, and all."""
    known = {}
    for body in bodies:
        found, number = measure(suite, body, "rsrun", explained=True)
        known.update((name, number) for name in found)
    return known


def spread(values):
    """The median and the quartiles."""
    if len(values) < 2:
        return {"median": values[0], "quartiles": [values[0], values[0]]}
    quartiles = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": statistics.median(values), "quartiles": [quartiles[0], quartiles[2]]}


def summary(name, rounds, ways, upgraded, better=HIGHER):
    """Of one row: each way's figures, and the ratios of rsrun to each other way, of the rounds that have both."""
    row = {"name": name, "better": better, "rounds": rounds, "upgraded": upgraded[0], "connections": upgraded[1],
           "ways": {}, "ratios": {}}
    for way in ways:
        values = [figures[way] for figures in rounds if way in figures]
        if values:
            row["ways"][way] = spread(values)
        pairs = [figures["rsrun"] / figures[way] for figures in rounds if figures.get(way) and "rsrun" in figures]
        if pairs and way != "rsrun":
            row["ratios"][way] = spread(pairs)
    return row


def number(value):
    return "%.0f" % value if value >= 1000 else "%.*f" % (1 if value >= 100 else 2, value)


def print_table(rows, ways, rounds):
    with_better = any(row["better"] == LOWER for row in rows)
    print("%-38s" % ("medians of %d rounds" % rounds) + "".join("%14s" % way for way in ways) +
          "".join("%26s" % ("rsrun to " + way) for way in ways[:-1]) + ("%10s" % "better" if with_better else "") +
          "%18s" % "upgraded")
    for row in rows:
        line = "%-38s" % row["name"]
        for way in ways:
            line += "%14s" % (number(row["ways"][way]["median"]) if way in row["ways"] else "-")
        for way in ways[:-1]:
            ratio = row["ratios"].get(way)
            line += "%26s" % ("%.2f (%.2f to %.2f)" % (ratio["median"], *ratio["quartiles"]) if ratio else "-")
        if with_better:
            line += "%10s" % row["better"]
        print(line + "%18s" % ("%d of %d" % (row["upgraded"], row["connections"])))


def print_bars(rows, ways):
    """A bar for each median, as long as its part of the row's largest."""
    width = 40
    for row in rows:
        print(row["name"])
        largest = max(way["median"] for way in row["ways"].values())
        for way in ways:
            if way in row["ways"]:
                median = row["ways"][way]["median"]
                ratio = row["ratios"].get(ways[0]) if way == "rsrun" else None
                print("  %-7s %-*s %10s%s" % (way, width, "#" * max(1, round(width * median / largest)), number(median),
                                              "  %.1f times" % ratio["median"] if ratio else ""))


def print_json(rows, rounds):
    print(json.dumps({"rounds": rounds, "processors": os.cpu_count(), "rows": rows}, indent=1))


def add_options(parser, rounds):
    parser.add_argument("-B", "--build", default=os.environ.get("FABTESTS_BIN", "."), help="the build tree")
    parser.add_argument("-n", "--rounds", type=int, default=rounds)
    parser.add_argument("--json", action="store_true", help="print one JSON object, with the figures of each round")


def suite_of(options, path=harness.SHM, address="127.0.0.1", small=False):
    """What all runs have in common."""
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    if options.rounds < 1:
        sys.exit("-n %d: not a number of rounds" % options.rounds)
    try:
        with socket.socket() as probe:
            probe.bind((address, 0))
    except OSError as error:
        sys.exit("%s: %s: with --verbs, run this in the lab's guest, by fabtests/lab/run" % (address, error.strerror))
    suite = harness.Suite(os.path.abspath(options.build), path, address, small, 1)
    if not os.access(suite.rsrun, os.X_OK):
        sys.exit("there is no rsrun in %s: name the build tree by -B" % options.build)
    return suite
