#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# What scripts that preload the library have in common, to be read by them: $builddir, $preload, and $scratch, a folder
# that goes with the script.
builddir=${FABTESTS_BIN:?the folder of the build}
scratch=$(mktemp -d "${TMPDIR:-/tmp}/preload.XXXXXX") || exit 1
trap 'rm -rf "$scratch"' EXIT
: >"$scratch/records"
shim=$builddir/.libs/librspreload-ofi.so
# With a sanitizer: the library that is built with it. AddressSanitizer's own has to be the first. ThreadSanitizer's is
# the second, as the program's library: it sees no lock that is taken within a call that it intercepts.
first=
sanitizer=
if [ -e "$builddir/.libs/librspreload-sanitized.so" ]; then
    shim=$builddir/.libs/librspreload-sanitized.so
    sanitizer=$(ldd "$shim" | awk '$1 ~ /^lib([at]san|clang_rt\.asan)/ { print $3 }')
    first=$(ldd "$shim" | awk '$1 ~ /^lib(asan|clang_rt\.asan)/ { printf "%s:", $3 }')
fi
# shellcheck disable=SC2034
preload="LD_PRELOAD=$first$shim"
# In a child, what only the parent's other threads refer to looks lost.
# shellcheck disable=SC2034
[ -z "$sanitizer" ] || preload="$preload ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0"
