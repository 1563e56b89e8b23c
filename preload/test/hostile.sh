#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# hostile.cpp: a server under the preload library goes on serving honest clients while peers lie to it, keeps none of
# their descriptors, waits for none of them in calls that do not block, and makes no memory error that valgrind sees. HOSTILE_SECONDS (2) each, HOSTILE_SEED.
. "${srcdir:?}/preload/test/preload.sh"
seconds=${HOSTILE_SECONDS:-2}
seed=${HOSTILE_SEED:-$(date +%s)}
hostile=$builddir/preload/test/hostile
failed=0
number=0

say() { # RESULT TEXT
    number=$((number + 1))
    [ "$1" -eq 0 ] && echo "ok $number - $2" || { echo "not ok $number - $2"; failed=1; }
}

# attack TEXT KIND [COMMAND...]: KIND may be empty; the command runs the victim.
attack() {
    text=$1
    kind=$2
    shift 2
    rm -f "$scratch/port"
    # shellcheck disable=SC2086
    env $preload RSPRELOAD_UPGRADE=1 "$@" "$hostile" victim "$scratch/port" 2>"$scratch/errors" &
    victim=$!
    for _ in $(seq 200); do
        [ ! -s "$scratch/port" ] || break
        sleep 0.05
    done
    port=$(cat "$scratch/port")
    # shellcheck disable=SC2086
    env $preload RSPRELOAD_UPGRADE=1 "$hostile" honest "$port" $((seconds + 1)) &
    honest=$!
    sleep 0.3
    # shellcheck disable=SC2086
    "$hostile" attack "$port" "$seconds" "$seed" $kind
    wait $honest
    say $? "$text: honest clients are served"
    sleep 1.2 # a silent peer's meeting
    left=$(find "/proc/$victim/fd" -type l 2>/dev/null | wc -l)
    echo "# $left descriptors are open"
    kill "$victim" 2>/dev/null
    say $? "$text: the victim lives"
    wait "$victim"
    [ "$left" -lt 40 ]
    say $? "$text: no descriptors stay open"
    sed 's/^/# /' "$scratch/errors" | grep -E 'ERROR SUMMARY|Invalid|Conditional|uninit' | head -20
}

# hold TEXT LETTER: calls that do not block do not wait for a peer that holds them up, see hostile_calls.hpp.
hold() {
    count=6
    rm -f "$scratch/port"
    # shellcheck disable=SC2086
    env $preload RSPRELOAD_UPGRADE=1 "$hostile" calls "$scratch/port" $count &
    victim=$!
    for _ in $(seq 200); do
        [ ! -s "$scratch/port" ] || break
        sleep 0.05
    done
    "$hostile" hold "$(cat "$scratch/port")" $count "$2"
    held=$?
    wait "$victim" && [ $held -eq 0 ]
    say $? "$1"
}

echo "# seed $seed"
if command -v valgrind >/dev/null 2>&1 && [ -z "$sanitizer" ]; then
    echo 1..22
else
    echo 1..21
fi
attack "lies of all kinds" ""
attack "messages of nothing but descriptors" 1
attack "a flood of frames" 14
attack "abuse of channels" 13
hold "shutdown does not wait for a peer that says it has taken bytes" s
hold "shutdown of both directions may follow one that waits for TCP" t
hold "splice does not wait for a peer that says it has taken bytes" p
hold "close does not wait for a peer that halts" h
hold "close does not wait for a peer that reads nothing of what it asks for" r
hold "close waits with SO_LINGER for a peer that reads what it asks for" w
hold "close with SO_LINGER loses nothing to a peer that reads after its timeout" l
hold "close loses nothing to a peer that asks for bytes and sends frames" b
hold "close does not wait for frames that are counted and not sent" c
if [ -n "$sanitizer" ] || ! command -v valgrind >/dev/null 2>&1; then
    exit $failed
fi
# In valgrind everything is slow, and the time limits of the honest client are not to fail it.
rm -f "$scratch/port"
# shellcheck disable=SC2086
env $preload RSPRELOAD_UPGRADE=1 valgrind -q --error-exitcode=9 --trace-children=no --log-file="$scratch/valgrind" \
    "$hostile" victim "$scratch/port" &
victim=$!
for _ in $(seq 400); do
    [ ! -s "$scratch/port" ] || break
    sleep 0.05
done
"$hostile" attack "$(cat "$scratch/port")" "$seconds" "$seed"
sleep 0.5
kill -0 "$victim" 2>/dev/null
lives=$?
kill "$victim" 2>/dev/null
wait "$victim"
cat "$scratch/valgrind" | sed 's/^/# /' | head -40
[ $lives -eq 0 ] && [ ! -s "$scratch/valgrind" ]
say $? "lies of all kinds, under valgrind"
exit $failed
