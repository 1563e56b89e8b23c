#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# Compiles all sources that see libfabric, but for the unit tests, against the headers of libfabric 2.x, from the next
# Debian release, without installing them.
# Exit status 77 where they cannot be had.
set -u
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
skip() {
    echo "$1"
    exit 77
}

[ -f /etc/apt/sources.list.d/debian.sources ] || skip "no Debian sources to look for libfabric 2.x in"
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/sources"
sed -e '/^Suites:/s/-security.*/-security/' -e '/^Suites:/s/bookworm[a-z]*/trixie/g' -e 's/trixie trixie-updates/trixie/' \
    /etc/apt/sources.list.d/debian.sources >"$work/sources/next.sources"
apt() {
    apt-get -q -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$work/sources" \
        -o Dir::State::lists="$work/lists" -o Dir::Cache="$work/cache" -o APT::Sandbox::User="$(id -un)" "$@"
}
(cd "$work" && apt update && apt download libfabric-dev) >"$work/log" 2>&1 || skip "libfabric-dev 2.x cannot be fetched"
dpkg -x "$work"/libfabric-dev_*.deb "$work/root"
headers=$work/root/usr/include
grep -q 'FI_MAJOR_VERSION 2' "$headers/rdma/fabric.h" || skip "what was fetched is not libfabric 2.x"

# Folders of an installation, which the build knows.
folders='-DRSRUN_BINDIR="" -DRSRUN_LIBDIR="" -DRSRUN_PRELOAD_DIR="" -DRSRUN_PROVIDER_DIR=""'
# shellcheck disable=SC2086
git ls-files '*.cpp' | grep -v '/wire_fuzz\|/test/\|^preload/\|^util/rsrun/' | xargs -P "$(nproc)" -n 1 \
    "${CXX:-g++}" -std=c++20 -Wall -Wextra -Werror -fsyntax-only $folders -isystem "$headers" -I. -Iinclude || exit 1
echo "compiled against $(basename "$work"/libfabric-dev_*.deb .deb)"
