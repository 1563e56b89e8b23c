#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# That path_bench and compare-path work, as `make check` runs it. It judges no figure.
here=$(cd "$(dirname "$0")" && pwd)

if ! command -v python3 >/dev/null 2>&1; then
    if [ -n "${CI:-}" ]; then
        echo "Bail out! CI is set, and there is no python3"
        exit 1
    fi
    echo "1..0 # SKIP there is no python3: scripts/install-deps.sh --programs"
    exit 0
fi
exec python3 "$here/check.py"
