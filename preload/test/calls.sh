#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# Programs see of their sockets what they see without the preload library: each case of calls_test says the same as a
# process of its own without it, with it on connections that are never upgraded, and on those that are. A sanitizer sees
# nothing of the library on the former.
. "${srcdir:?}/preload/test/preload.sh"
program=$builddir/preload/test/calls_test
cases=$("$program") || exit 1
# The kernel says at once what is ready; while memory is, the library asks it now and then.
export RSPRELOAD_FAIRNESS=0
ways=3
[ -z "$sanitizer" ] || ways=2
echo "1..$((ways * $(echo "$cases" | wc -l) + 3))"
number=0
failed=0
report() { # RESULT NAME
    number=$((number + 1))
    if [ "$1" -eq 0 ]; then echo "ok $number - $2"; else failed=1 && echo "not ok $number - $2"; fi
}
run() { # CASE OUTPUT [ENVIRONMENT...]
    name=$1 output=$2
    shift 2
    env CALLS_EARLY="$(test "$name" = sockets_before_main && echo 1)" "$@" "$program" "$name" >"$output" 2>"$output.err"
    status=$?
    cat "$output.err" >>"$output"
    echo "exit status $status" >>"$output"
    return "$status"
}
compare() { # NAME EXPECTED GOT
    if cmp -s "$2" "$3"; then report 0 "$1"; else report 1 "$1"; diff "$2" "$3" | sed 's/^/# /'; fi
}
# shellcheck disable=SC2086
for case in $cases; do
    run "$case" "$scratch/plain"
    report $? "$case: as it should be"
    if [ -z "$sanitizer" ]; then
        run "$case" "$scratch/never" $preload RSPRELOAD_UPGRADE=never
        compare "$case: never upgraded" "$scratch/plain" "$scratch/never"
    fi
    case $case,$sanitizer in
    *child*,*tsan*)
        number=$((number + 1))
        echo "ok $number - $case: upgraded # SKIP ThreadSanitizer ends a process with threads that forks"
        continue
        ;;
    esac
    run "$case" "$scratch/upgraded" $preload RSPRELOAD_UPGRADE=1 CALLS_EXCHANGES=300 RSPRELOAD_EXPLAIN="$scratch/records"
    compare "$case: upgraded" "$scratch/plain" "$scratch/upgraded"
done
# A ring that cannot grow is left when it is full, and bytes that cannot be given back are read from it.
for case in both_ends_send_before_they_receive what_a_closed_end_has_sent_arrives; do
    if [ -n "$sanitizer" ]; then
        number=$((number + 1))
        echo "ok $number - $case: no memory # SKIP a sanitizer's library goes first"
        continue
    fi
    run "$case" "$scratch/plain"
    run "$case" "$scratch/full" LD_PRELOAD="$builddir/.libs/libno-memory.so:$shim" RSPRELOAD_UPGRADE=1 CALLS_EXCHANGES=300
    compare "$case: no memory" "$scratch/plain" "$scratch/full"
done
# It would be easy to say the same if nothing were upgraded.
upgraded=$(awk -F '\t' '$8 > 0' "$scratch/records" | wc -l)
test "$upgraded" -gt 15
report $? "connections were upgraded: $upgraded"
exit $failed
