#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# fabric_waits_test.cpp over the fabric path on one host: librsocket-ofi over the tcp core.
. "${srcdir:?}/preload/test/preload.sh"
export FI_PROVIDER_PATH="$builddir/.libs" FI_RSTREAM_CORE=tcp
export LD_LIBRARY_PATH="$builddir/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
# shellcheck disable=SC2086
exec env $preload RSPRELOAD_UPGRADE=test:1:0:fabric RSPRELOAD_SPIN=0 \
    RSPRELOAD_FABRIC_WORKER="$builddir/.libs/rspreload-fabric" \
    "$builddir/preload/test/fabric_waits_test" "$@"
