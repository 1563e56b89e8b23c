#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# last_holder_test.cpp over the fabric path on one host: librsocket-ofi over the tcp core, in a worker.
. "${srcdir:?}/preload/test/preload.sh"
if [ -n "$sanitizer" ]; then
    echo "1..0 # SKIP sanitizers do not survive that a process with threads forks"
    exit 0
fi
export FI_PROVIDER_PATH="$builddir/.libs" FI_RSTREAM_CORE=tcp
export LD_LIBRARY_PATH="$builddir/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
# shellcheck disable=SC2086
exec env $preload RSPRELOAD_UPGRADE=test:1:0:fabric RSPRELOAD_FABRIC_WORKER="$builddir/.libs/rspreload-fabric" \
    "$builddir/preload/test/last_holder_test" "$@"
