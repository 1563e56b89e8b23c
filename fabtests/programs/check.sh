#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# The tests with real programs, as `make check` runs them: between processes of this host.
here=$(cd "$(dirname "$0")" && pwd)

skip() {
    if [ -n "${CI:-}" ] && [ -z "${2:-}" ]; then
        echo "Bail out! CI is set, and $1"
        exit 1
    fi
    echo "1..0 # SKIP $1"
    exit 0
}

command -v python3 >/dev/null 2>&1 || skip "there is no python3: scripts/install-deps.sh --programs"
# A library with a sanitizer in it can be loaded only by a program that has it too.
case ${SANITIZE_FLAGS:-} in
?*) skip "a build with sanitizers cannot be loaded into other programs" always ;;
esac
rm -f programs.shm.json
exec python3 "$here/run" -B "${FABTESTS_BIN:-.}" --results programs.shm.json
