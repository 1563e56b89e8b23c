#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# unread_urgent_test.cpp over the fabric path on one host: librsocket-ofi over the tcp core, in a worker.
. "${srcdir:?}/preload/test/preload.sh"
export FI_PROVIDER_PATH="$builddir/.libs" FI_RSTREAM_CORE=tcp
export LD_LIBRARY_PATH="$builddir/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
# shellcheck disable=SC2086
env $preload RSPRELOAD_UPGRADE=test:1:0:fabric RSPRELOAD_FABRIC_WORKER="$builddir/.libs/rspreload-fabric" \
    "$builddir/preload/test/unread_urgent_test" "$@"
