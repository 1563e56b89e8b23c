#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# In a user namespace, all users that have no id there look the same: their connections stay with the kernel. Those of a
# user that has one are upgraded.
. "${srcdir:?}/preload/test/preload.sh"
echo 1..2
if ! unshare -U -r true 2>"$scratch/why"; then
    echo "ok 1 - a user that has an id # SKIP no user namespace: $(cat "$scratch/why")"
    echo "ok 2 - a user that has none # SKIP no user namespace"
    exit 0
fi
# That test expects a connection to be upgraded.
run() {
    # shellcheck disable=SC2086
    env $preload RSPRELOAD_UPGRADE=1 \
        CMOCKA_TEST_FILTER=test_timestamps_are_the_kernels_only_when_they_are_asked_for \
        unshare "$@" "$builddir/preload/test/options_test" >"$scratch/said" 2>&1
}
if run -U -r; then
    echo "ok 1 - a user that has an id"
else
    echo "not ok 1 - a user that has an id"
    sed 's/^/# /' "$scratch/said"
fi
if ! run -U && grep -q 'path_of(pair.with) is 0, not 3' "$scratch/said"; then
    echo "ok 2 - a user that has none"
else
    echo "not ok 2 - a user that has none"
    sed 's/^/# /' "$scratch/said"
fi
