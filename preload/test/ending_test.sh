#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# ending_test.cpp under the preload library, on connections that are upgraded by their first bytes. patient: one case is
# about a sleep on a full ring, which therefore must not be left for the kernel's connection.
. "${srcdir:?}/preload/test/preload.sh"
# shellcheck disable=SC2086
env $preload RSPRELOAD_UPGRADE=test:1:0:patient "$builddir/preload/test/ending_test" "$@"
