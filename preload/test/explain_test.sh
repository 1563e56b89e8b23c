#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# explain_test.cpp under the preload library, with a file for its records.
. "${srcdir:?}/preload/test/preload.sh"
# shellcheck disable=SC2086
env $preload RSPRELOAD_EXPLAIN="$scratch/records" "$builddir/preload/test/explain_test" "$@"
