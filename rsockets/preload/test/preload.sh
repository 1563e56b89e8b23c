# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# What scripts that preload the library have in common, to be read by them: $builddir, $preload with the settings that
# carry loopback over tcp, and $scratch, a folder that goes with the script. Outside these tests loopback is never carried,
# and librspreload-ofi tells of the kernel's sockets: RSPRELOAD_CARRY_LOOPBACK and RSPRELOAD_EXPLAIN_KERNEL are hooks for
# the tests alone.
builddir=${FABTESTS_BIN:?the folder of the build}
scratch=$(mktemp -d "${TMPDIR:-/tmp}/preload.XXXXXX") || exit 1
trap 'rm -rf "$scratch"' EXIT
shim=$builddir/.libs/librspreload-fabric.so
# A sanitizer's library has to be the first. Programs name it, libraries do not.
: "${RSOCKET_LIBRARY:?}"
first=$(ldd "$builddir/rsockets/preload/test/calls_test" | awk '$1 ~ /^lib[at]san/ { printf "%s:", $3 }')
case $first in
*libtsan*)
    echo "1..0 # SKIP ThreadSanitizer stands between the program and what is preloaded, and sees none of its locks"
    exit 0
    ;;
esac
preload="LD_PRELOAD=$first$shim RSPRELOAD_LIBRARY=$RSOCKET_LIBRARY RSPRELOAD_RULES=127.0.0.0/8 FI_RSTREAM_CORE=tcp"
preload="$preload RSPRELOAD_CARRY_LOOPBACK=1 RSPRELOAD_EXPLAIN_KERNEL=1"
# In a child, what only the parent's other threads refer to looks lost.
[ -z "$first" ] || preload="$preload ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0"
