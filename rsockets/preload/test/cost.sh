#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# What the preloaded library costs a program that it does not carry, as ratios of one run: turns without and with it
# alternate, and the best of each counts, since a machine's other work only adds. Not a test: nothing fails. For builds
# with optimization:
#
#     make rsockets/preload/test/preload_cost && rsockets/preload/test/cost.sh -B . [-n turns]
set -e
turns=7
FABTESTS_BIN=.
while getopts n:B: option; do
    case $option in
    n) turns=$OPTARG ;;
    B) FABTESTS_BIN=$OPTARG ;;
    *) exit 2 ;;
    esac
done
FABTESTS_BIN=$(cd "$FABTESTS_BIN" && pwd)
RSOCKET_LIBRARY=$FABTESTS_BIN/.libs/librsocket-ofi.so
. "$(dirname "$0")/preload.sh"
# Microseconds that a program takes which does nothing: of a hundred, started one after the other.
start() {
    begin=$(date +%s%N)
    i=0
    while [ $i -lt 100 ]; do
        "$@" /bin/true
        i=$((i + 1))
    done
    end=$(date +%s%N)
    echo $(((end - begin) / 100000))
}
for turn in $(seq "$turns"); do
    "$builddir/rsockets/preload/test/preload_cost" >>"$scratch/plain"
    env $preload "$builddir/rsockets/preload/test/preload_cost" >>"$scratch/preloaded"
    start env >>"$scratch/start"
    start env $preload >>"$scratch/start_preloaded"
done
best() { sort -n "$scratch/$1" | head -1; }
awk -v a="$(best plain)" -v b="$(best preloaded)" \
    'BEGIN { printf "write and read on a pipe: %.1f ns, preloaded %.1f ns, ratio %.3f\n", a, b, b / a }'
awk -v a="$(best start)" -v b="$(best start_preloaded)" \
    'BEGIN { printf "a program that does nothing: %d us, preloaded %d us, %+d us\n", a, b, b - a }'
