#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# lowest_fd_test.cpp under the preload library, on connections that are upgraded by their first bytes.
. "${srcdir:?}/preload/test/preload.sh"
# shellcheck disable=SC2086
env $preload RSPRELOAD_UPGRADE=1 "$builddir/preload/test/lowest_fd_test" "$@"
