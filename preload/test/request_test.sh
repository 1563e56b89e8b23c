#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# request_test.cpp under the preload library, on connections that are upgraded by their first bytes.
. "${srcdir:?}/preload/test/preload.sh"
# shellcheck disable=SC2086
env $preload RSPRELOAD_UPGRADE=test:1:0:patient "$builddir/preload/test/request_test" "$@"
