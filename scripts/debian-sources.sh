#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# debian-sources.sh [SUITE]: prints the line of sources.list that names SUITE (default: the release of this machine) on the
# mirror from which this machine has its packages. Exit status 77 where there is none.
set -u
skip() {
    echo "SKIP: $1" >&2
    exit 77
}

own=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release 2>/dev/null)
[ "$(sed -n 's/^ID=//p' /etc/os-release 2>/dev/null)" = debian ] || skip "this machine is not Debian, so that it has no mirror of it"
mirror=$(cat /etc/apt/sources.list.d/*.sources 2>/dev/null | awk -v suite="$own" '
    /^URIs:/ { uri = $2 }
    /^Suites:/ { here = 0; for (i = 2; i <= NF; i++) here += $i == suite }
    /^[[:space:]]*$/ { if (here && uri) { print uri; exit } uri = ""; here = 0 }
    END { if (here && uri) print uri }' | head -1)
[ -n "$mirror" ] || mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null |
    sed -n "s/^deb \(\[[^]]*\] \)\{0,1\}\([^ ]*\) $own .*/\2/p" | head -1)
[ -n "$mirror" ] || skip "the sources of apt name no mirror of Debian $own"
echo "deb $mirror ${1:-$own} main"
