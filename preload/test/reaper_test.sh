#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# reaper_test.cpp under the preload library, with itself as the worker: as a subreaper, and as process 1 of a PID
# namespace where that may be made.
. "${srcdir:?}/preload/test/preload.sh"
program=$builddir/preload/test/reaper_test
failed=0
run() { # WHAT BEFORE...
    what=$1
    shift
    : >"$scratch/workers"
    # shellcheck disable=SC2086
    "$@" env $preload RSPRELOAD_UPGRADE=test:1:0:fabric RSPRELOAD_FABRIC_WORKER="$program" \
        REAPER_FILE="$scratch/workers" "$program" >"$scratch/output" 2>&1
    result=$?
    sed 's/^/# /' "$scratch/output"
    if [ "$result" -eq 0 ]; then echo "ok - $what"; else failed=1 && echo "not ok - $what"; fi
}
echo 1..2
run "a subreaper"
if unshare -U -r --pid --fork true 2>"$scratch/why"; then
    run "process 1" unshare -U -r --pid --fork
else
    echo "ok - process 1 # SKIP no namespace: $(cat "$scratch/why")"
fi
exit $failed
