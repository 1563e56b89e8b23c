#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# The preloaded library needs libc and nothing else, takes no symbol from anything else, and loads nothing into a program
# that has no socket to carry.
. "${srcdir:?}/rsockets/preload/test/preload.sh"
echo 1..4
number=0
report() {
    number=$((number + 1))
    if [ "$1" -eq 0 ]; then echo "ok $number - $2"; else echo "not ok $number - $2"; fi
}
needed=$(readelf -d "$shim" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -v '^\(libc\|ld-linux.*\)\.so' | tr '\n' ' ')
test -z "$needed"
report $? "it needs libc only ${needed:+(and $needed)}"
others=$(nm -D --undefined-only "$shim" | awk '$2 !~ /@GLIBC_/ && $1 == "U"' | tr '\n' ' ')
test -z "$others"
report $? "it takes nothing from elsewhere $others"
env $preload LD_DEBUG=files LD_DEBUG_OUTPUT="$scratch/files" sh -c 'echo some text | cat >/dev/null'
! cat "$scratch"/files* | grep -q 'librsocket-ofi\|libfabric'
report $? "a program without sockets gets no other library"
# Every call that is there is in libc too, by this name.
unknown=$(nm -D --defined-only "$shim" | awk '$2 == "T" || $2 == "W" { print $3 }' | while read -r name; do
    nm -D --defined-only "$(ldd "$shim" | awk '/libc\.so/ { print $3 }')" | grep -q " $name@" || echo "$name"
done | tr '\n' ' ')
test -z "$unknown"
report $? "all that it exports are calls of libc's $unknown"
