#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# torture (torture_parts/main.cpp) under the preload library in three ways, some seconds in all. The long form:
#
#     TORTURE_BYTES=1000000000 TORTURE_ROUNDS=40 make check TESTS=preload/test/torture.sh
#
# TORTURE_SEED chooses what is random; the output names it. TORTURE_ACTIONS chooses actions.
. "${srcdir:?}/preload/test/preload.sh"
bytes=${TORTURE_BYTES:-20000000}
rounds=${TORTURE_ROUNDS:-4}
seed=${TORTURE_SEED:-$(date +%s)}
failed=0
number=0

# one WHAT ACTIONS OPTION...
one() {
    what=$1 actions=$2
    shift 2
    for way in 1 8 test:1:100; do
        number=$((number + 1))
        : >"$scratch/records"
        # shellcheck disable=SC2086
        if env $preload RSPRELOAD_UPGRADE=$way RSPRELOAD_EXPLAIN="$scratch/records" "$builddir/preload/test/torture" \
            --bytes "$bytes" --rounds "$rounds" --seed "$seed" --actions "$actions" "$@" >"$scratch/output" 2>&1; then
            result=ok
        else
            result="not ok"
        fi
        counts=$(awk -F '\t' '{ u += $8; r += $9 } END { print u + 0, r + 0 }' "$scratch/records")
        upgrades=${counts% *}
        if [ "$result" = ok ]; then grep '^#' "$scratch/output"; else head -100 "$scratch/output"; fi
        echo "# $upgrades upgrades, ${counts#* } returns"
        # It would be easy to be right if nothing were upgraded.
        [ "$upgrades" -gt 0 ] || result="not ok"
        echo "$result $number - $what, upgraded by $way"
        [ "$result" = ok ] || failed=1
    done
}

if [ -n "$sanitizer" ]; then
    echo "1..4"
    one "ways of waiting" drive
    echo "ok 4 - killed and forked processes # SKIP sanitizers do not survive that a process with threads forks"
    exit $failed
fi
echo "1..12"
one "ways of waiting, and killed writers" "${TORTURE_ACTIONS:-drive,kill}"
one "processes that share connections" "${TORTURE_ACTIONS:-fork,child,share,kill}"
one "connections passed and inherited by exec" "${TORTURE_ACTIONS:-pass,keep,exec}"
one "a killed process" drive --kill-side
exit $failed
