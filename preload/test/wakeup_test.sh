#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# wakeup_test.cpp under the preload library, on connections that are upgraded by their first bytes, and stay so though
# nobody reads, with threads that sleep at once.
. "${srcdir:?}/preload/test/preload.sh"
# shellcheck disable=SC2086
env $preload RSPRELOAD_UPGRADE=test:1:0:patient RSPRELOAD_SPIN=0 "$builddir/preload/test/wakeup_test" "$@"
