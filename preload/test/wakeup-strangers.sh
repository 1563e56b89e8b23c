#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# wakeup_test.cpp as in wakeup_test.sh, with each process taking the others for those of another user: they wake each
# other through pipes, in poll, select and sets.
. "${srcdir:?}/preload/test/preload.sh"
# shellcheck disable=SC2086
env $preload RSPRELOAD_UPGRADE=test:1:0:strangers:patient RSPRELOAD_SPIN=0 "$builddir/preload/test/wakeup_test" strangers
