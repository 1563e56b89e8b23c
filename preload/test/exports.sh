#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# The preload library exports the calls of calls/table.hpp, each of which libc has by this name, and it needs nothing but
# libc.
. "${srcdir:?}/preload/test/preload.sh"
echo 1..4
number=0
# What is wrong: nothing, or names.
report() {
    number=$((number + 1))
    if [ -z "$2" ]; then echo "ok $number - $1"; else echo "not ok $number - $1: $2"; fi
}
library=$builddir/.libs/librspreload-ofi.so
libc=$(ldd "$library" | awk '/libc\.so/ { print $3 }')
grep -o '[A-Za-z_0-9]*;' "$builddir/preload/calls/exports.map" | tr -d ';' | grep . | sort -u >"$scratch/table"
nm -D --defined-only "$library" | awk '{ print $3 }' | sort -u >"$scratch/exported"
nm -D --defined-only "$libc" | awk '{ sub(/@.*/, "", $3); print $3 }' | sort -u >"$scratch/libc"
names() { tr '\n' ' '; }
if [ "$(wc -l <"$scratch/table")" -lt 50 ]; then
    report 'the table is read' "$(names <"$scratch/table")"
else
    report 'what is exported and the table are the same' "$(comm -3 "$scratch/table" "$scratch/exported" | names)"
fi
report 'libc has each call by its name' "$(grep -vx rspreload_path "$scratch/exported" | comm -23 - "$scratch/libc" | names)"
report 'it needs libc only' \
    "$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -v '^\(libc\|ld-linux.*\)\.so' | names)"
report 'it takes nothing from elsewhere' "$(nm -D --undefined-only "$library" | awk '$2 !~ /@GLIBC_/ && $1 == "U"' | names)"
