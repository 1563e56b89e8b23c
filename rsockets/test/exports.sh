#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# The library exports what its header declares and nothing else, all of it under a version, and needs no library beyond
# libfabric and the compiler's.
library=${RSOCKET_LIBRARY:?the library to look at}
header=${srcdir:?}/include/rdma/rsocket.h
echo 1..3
declared=$(sed -n 's/^\(int\|off_t\|s\?size_t\) \(r[a-z0-9_]*\)(.*/\2/p' "$header" | sort | tr '\n' ' ')
exported=$(nm -D --defined-only "$library" | awk '$3 !~ /@@RSOCKET_OFI_PRIVATE$/ && $2 == "T" { sub(/@.*/, "", $3); print $3 }' | grep -v '^__' | sort -u | tr '\n' ' ')
if [ "$declared" = "$exported" ]; then
    echo "ok 1 - the library exports what the header declares"
else
    echo "not ok 1 - the library exports what the header declares"
    echo "# declared: $declared"
    echo "# exported: $exported"
fi
unversioned=$(nm -D --defined-only "$library" | awk '$2 == "T"' | grep -v '@@RSOCKET_OFI_\|@RDMACM_1.0$' | grep -v ' __')
if [ -z "$unversioned" ]; then
    echo "ok 2 - every symbol has a version"
else
    echo "not ok 2 - every symbol has a version"
fi
needs=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
    grep -v '^\(libfabric\|libstdc++\|libm\|libgcc_s\|libc\|ld-linux.*\|libasan\|libtsan\|libubsan\|libclang_rt\..*\)\.so' | tr '\n' ' ')
if [ -z "$needs" ]; then
    echo "ok 3 - the library needs no other library"
else
    echo "not ok 3 - the library needs no other library"
    echo "# $needs"
fi
