#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# check-libfabric2.sh BUILD_DIR: clang compiles the provider and the socket library, with its analysis of locks, against the
# headers of libfabric 2.x, which come from the next Debian release and are not installed. If they cannot be fetched, against the
# installed ones, with exit status 77.
set -u
build=$(cd "${1:?}" && pwd) || exit 1
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
skip() {
    echo "SKIP: $1: checked against the installed headers"
    make -C "$build" check-thread-safety || exit 1
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

make -C "$build" check-thread-safety HEADERS="$headers" || exit 1
echo "compiled against $(basename "$work"/libfabric-dev_*.deb .deb)"
