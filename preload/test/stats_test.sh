#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# stats_test.cpp under the preload library, on connections that are upgraded by their first bytes.
. "${srcdir:?}/preload/test/preload.sh"
# Children of a process with a service thread start their own.
# shellcheck disable=SC2086
env $preload TSAN_OPTIONS="${TSAN_OPTIONS:+$TSAN_OPTIONS:}die_after_fork=0" RSPRELOAD_UPGRADE=1 "$builddir/preload/test/stats_test" "$@"
