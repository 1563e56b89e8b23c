#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# build-packages.sh ARCHIVE DIR: builds the Debian packages from an archive of `make dist` and puts them into DIR.
# build-packages.sh DIR: the same from an export of what is committed.
set -eu
die() {
    echo "${0##*/}: $*" >&2
    exit 1
}

case ${1:-} in -*) die "$1 is not an option: ${0##*/} [ARCHIVE] DIR" ;; esac
case $# in
1) archive='' out=$1 ;;
2) archive=$1 out=$2 ;;
*) die "say where the packages go: ${0##*/} [ARCHIVE] DIR" ;;
esac
command -v dpkg-buildpackage >/dev/null 2>&1 || die "dpkg-buildpackage is missing: scripts/install-deps.sh --packages"
mkdir -p "$out"
rm -rf "$out/source"
mkdir "$out/source"
if [ -n "$archive" ]; then
    tar -C "$out/source" --strip-components=1 -xf "$archive" || die "$archive cannot be unpacked"
else
    git -C "$(dirname "$0")/.." archive HEAD | tar -C "$out/source" -x || die "there is no commit to export"
fi
cd "$out/source"
DEB_BUILD_OPTIONS="parallel=$(nproc) noautodbgsym ${DEB_BUILD_OPTIONS:-}"
export DEB_BUILD_OPTIONS
dpkg-buildpackage -us -uc -b >../build.log 2>&1 ||
    { tail -40 ../build.log >&2; die "dpkg-buildpackage failed; its output is in $out/build.log"; }
cd ..
ls ./*.deb
