#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# stats_processes_test.cpp under the preload library, on connections that are upgraded by their first bytes, and stay so
# though a reader waits for a processor.
. "${srcdir:?}/preload/test/preload.sh"
# Children of a process with a service thread start their own.
# shellcheck disable=SC2086
env $preload TSAN_OPTIONS="${TSAN_OPTIONS:+$TSAN_OPTIONS:}die_after_fork=0" RSPRELOAD_UPGRADE=test:1:0:patient "$builddir/preload/test/stats_processes_test" "$@"
