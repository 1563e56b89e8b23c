#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# lingering_test.cpp under the preload library. Each process takes the others for those of another user.
. "${srcdir:?}/preload/test/preload.sh"
# shellcheck disable=SC2086
env $preload RSPRELOAD_UPGRADE=test:1:0:strangers "$builddir/preload/test/lingering_test" "$@"
