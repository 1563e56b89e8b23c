#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# A wrong argument of a script or of fi_stream_* is named in one line on standard error, and nothing else happens.
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT
number=0
# refuses PART PROGRAM ARGUMENTS...: ends with an error, in one line that holds PART.
refuses() {
    part=$1 script=$2
    shift 2
    number=$((number + 1))
    case $script in
    fabtests/programs/*)
        command -v python3 >/dev/null 2>&1 || { echo "ok $number - $script # SKIP there is no python3"; return; }
        [ -x "${FABTESTS_BIN:?}/fi_stream_bw" ] ||
            { echo "ok $number - $script # SKIP a build with a sanitizer has no tools"; return; }
        program=${srcdir:?}/$script
        ;;
    fi_stream_*)
        program=${FABTESTS_BIN:?}/$script
        [ -x "$program" ] || { echo "ok $number - $script # SKIP a build with a sanitizer has no tools"; return; }
        ;;
    *) program=${srcdir:?}/$script ;;
    esac
    output=$(timeout 60 "$program" "$@" 2>"$errors" </dev/null)
    status=$?
    if [ $status -ne 0 ] && [ -z "$output" ] && [ "$(wc -l <"$errors")" -eq 1 ] && grep -qF -- "$part" "$errors"; then
        echo "ok $number - $script $*: $part"
    else
        echo "not ok $number - $script $*: $part"
        { echo "status $status" && echo "$output" && cat "$errors"; } | head -8 | sed 's/^/# /'
    fi
}

echo 1..37
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
refuses "-Z is not an option that is known; try --help" fi_stream_bw --port=0 -Zv
refuses "--nonsense is not an option that is known" fi_stream_bw --nonsense
refuses "--verify takes no argument" fi_stream_bw --verify=yes
refuses "--size needs an argument; try --help" fi_stream_bw --size
refuses "-S needs an argument; try --help" fi_stream_bw -vS
refuses "--size '': not a number from 1" fi_stream_bw -S ''
refuses "provider rstream, server no-such-host.invalid, port 9228" fi_stream_bw no-such-host.invalid
refuses "provider nonsense;rstream, port 0" fi_stream_msg -c nonsense -P 0
refuses "local address 198.51.100.1, port 0" fi_stream_pingpong -s 198.51.100.1 -P 0
refuses "listen on 198.51.100.1 port 0" fi_stream_bw -p kernel -s 198.51.100.1 -P 0
refuses "provider rstream, domain nonsense, server 127.0.0.1" fi_stream_footprint -I 1 -d nonsense
refuses "-n 0: not a number of rounds" fabtests/programs/compare -n 0
refuses "no row begins with one of these words" fabtests/programs/compare nonsense
refuses "-n 0: not a number of rounds" fabtests/programs/compare-path -n 0
refuses "no case's name holds one of these words" fabtests/programs/compare-path nonsense
