#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# explain_test.cpp under the preload library, with a file for its records, whose name is long.
. "${srcdir:?}/preload/test/preload.sh"
part=$(printf '%0200d' 0)
mkdir -p "$scratch/$part/$part/$part" || exit 1
: >"$scratch/$part/$part/$part/records"
# shellcheck disable=SC2086
env $preload RSPRELOAD_EXPLAIN="$scratch/$part/$part/$part/records" "$builddir/preload/test/explain_test" "$@"
