#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# main_exit_test.cpp under the preload library.
. "${srcdir:?}/preload/test/preload.sh"
# shellcheck disable=SC2086
env $preload RSPRELOAD_UPGRADE=1 "$builddir/preload/test/main_exit_test" "$@"
