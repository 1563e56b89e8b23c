#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# netns_test.cpp under the preload library, in a network namespace of its own.
. "${srcdir:?}/preload/test/preload.sh"
if ! unshare -U -r -n true 2>"$scratch/why"; then
    echo "1..0 # SKIP no user namespace: $(cat "$scratch/why")"
    exit 0
fi
# shellcheck disable=SC2086
env $preload RSPRELOAD_UPGRADE=1 unshare -U -r -n "$builddir/preload/test/netns_test" "$@"
