#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# A wrong argument of a script is named in one line on standard error, and nothing else happens.
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT
number=0
# refuses PART SCRIPT ARGUMENTS...: ends with an error, in one line that holds PART.
refuses() {
    part=$1 script=$2
    shift 2
    number=$((number + 1))
    output=$(timeout 60 "${srcdir:?}/$script" "$@" 2>"$errors" </dev/null)
    status=$?
    if [ $status -ne 0 ] && [ -z "$output" ] && [ "$(wc -l <"$errors")" -eq 1 ] && grep -qF -- "$part" "$errors"; then
        echo "ok $number - $script $*: $part"
    else
        echo "not ok $number - $script $*: $part"
        { echo "status $status" && echo "$output" && cat "$errors"; } | head -8 | sed 's/^/# /'
    fi
}

echo 1..22
for comparison in compare.sh compare-sockets.sh; do
    refuses "$comparison: -n x: not a number of rounds" fabtests/scripts/$comparison -n x
    refuses "$comparison: -n 0: not a number of rounds" fabtests/scripts/$comparison -n 0
    refuses "in /nowhere/: name the build tree by -B" fabtests/scripts/$comparison -B /nowhere
    refuses "-B needs a value" fabtests/scripts/$comparison -B
done
refuses "there is no fi_stream_msg in /nowhere/: name the build tree by -B" fabtests/scripts/runfabtests.sh -B /nowhere
refuses "-T x: not a number of seconds" fabtests/scripts/runfabtests.sh -T x
refuses "-T needs a value" fabtests/scripts/runfabtests.sh -T
refuses "-t x: not a number of seconds" fabtests/lab/run -t x -- true
refuses "-t x: not a number of seconds" fabtests/lab/check -t x
refuses "-t x: not a number of seconds" fabtests/lab/compare -t x
refuses "-t needs a value" fabtests/lab/run -t
refuses "a command is missing: up, down, run or status" util/rstream-lab-setup
refuses "nonsense: not one of up, down, run and status" util/rstream-lab-setup nonsense
refuses "up nonsense: neither roce nor iwarp" util/rstream-lab-setup up nonsense
refuses "run: the command is missing" util/rstream-lab-setup run
refuses "--nonsense is not an option" scripts/build-packages.sh --nonsense
refuses "quickstart check soak" quickstart check-long soak
refuses "there is no part nonsense" quickstart check nonsense
