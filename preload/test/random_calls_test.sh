#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# The calls of random_calls_test.cpp return the same without the preload library, with it on connections that are upgraded
# as soon as possible, and on connections that return to the kernel at random. Longer: RANDOM_CALLS_SEEDS=200; one seed:
# RANDOM_CALLS_FIRST=18 RANDOM_CALLS_SEEDS=1.
. "${srcdir:?}/preload/test/preload.sh"
program=$builddir/preload/test/random_calls_test
first=${RANDOM_CALLS_FIRST:-1}
seeds=${RANDOM_CALLS_SEEDS:-8}
calls=200
# The kernel says at once what is ready; while memory is, the library asks it now and then.
export RSPRELOAD_FAIRNESS=0
echo "1..$((2 * seeds + 1))"
number=0
failed=0
report() { # RESULT NAME
    number=$((number + 1))
    if [ "$1" -eq 0 ]; then echo "ok $number - $2"; else failed=1 && echo "not ok $number - $2"; fi
}
run() { # SEED OUTPUT [ENVIRONMENT...]
    seed=$1 output=$2
    shift 2
    env "$@" "$program" "$seed" "$calls" >"$output" 2>&1
    echo "exit status $?" >>"$output"
}
for seed in $(seq "$first" $((first + seeds - 1))); do
    run "$seed" "$scratch/plain"
    for upgrade in 1 test:1:30; do
        # shellcheck disable=SC2086
        run "$seed" "$scratch/library" $preload RSPRELOAD_UPGRADE="$upgrade" RSPRELOAD_EXPLAIN="$scratch/records"
        grep -q '^exit status 0$' "$scratch/plain" && cmp -s "$scratch/plain" "$scratch/library"
        report $? "seed $seed, upgrade $upgrade" || true
        cmp -s "$scratch/plain" "$scratch/library" || diff "$scratch/plain" "$scratch/library" | head -20 | sed 's/^/# /'
    done
done
# It would be easy to return the same if nothing were upgraded. A seed alone may pass all its connections on at once.
upgraded=$(awk -F '\t' '$8 > 0' "$scratch/records" | wc -l)
test $((upgraded * 2)) -ge "$seeds" || test "$seeds" -lt 4
report $? "$upgraded connections were upgraded"
exit "$failed"
