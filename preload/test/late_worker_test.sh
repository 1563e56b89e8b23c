#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# late_worker_test.cpp under the preload library, with itself as the worker.
. "${srcdir:?}/preload/test/preload.sh"
: >"$scratch/taken"
# shellcheck disable=SC2086
env $preload RSPRELOAD_UPGRADE=test:1:0:fabric RSPRELOAD_FABRIC_WORKER="$builddir/preload/test/late_worker_test" \
    LATE_WORKER_FILE="$scratch/taken" "$builddir/preload/test/late_worker_test" "$@"
