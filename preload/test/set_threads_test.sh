#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# set_threads_test.cpp without the preload library, and under it in several ways. Longer: SET_THREADS_ROUNDS=100.
. "${srcdir:?}/preload/test/preload.sh"
program=$builddir/preload/test/set_threads_test
failed=0
number=0
report() { # RESULT WHAT
    number=$((number + 1))
    if [ "$1" -eq 0 ]; then echo "ok $number - $2"; else failed=1 && echo "not ok $number - $2"; fi
}
details() { sed -n 's/^not ok/# failed:/p; /^#/p' "$scratch/output"; }
echo 1..6
SET_THREADS_ROUNDS=1 "$program" >"$scratch/output" 2>&1
report $? "without the library"
details
for way in 8 40 1 test:8:100; do
    # shellcheck disable=SC2086
    env $preload RSPRELOAD_UPGRADE=$way RSPRELOAD_EXPLAIN="$scratch/records" "$program" >"$scratch/output" 2>&1
    report $? "upgraded by $way"
    details
done
# It would be easy to lose nothing if nothing were upgraded.
upgraded=$(awk -F '\t' '$8 > 0' "$scratch/records" | wc -l)
test "$upgraded" -gt 100
report $? "connections were upgraded: $upgraded"
exit $failed
