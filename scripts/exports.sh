#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# The plugin exports the one symbol that libfabric looks for, needs no library beyond libfabric and the compiler's, and
# has no thread-local memory: in a library that is loaded at run time, the first use of it in a thread allocates, which
# no signal handler may.
plugin=${RSTREAM_PLUGIN:?the plugin to look at}
echo 1..3
exports=$(nm -D --defined-only "$plugin" | awk '{ print $3 }' | grep -v '^__\(asan\|tsan\|odr_asan\|ubsan\|lsan\|sanitizer\)' | sort | tr '\n' ' ')
if [ "$exports" = "fi_prov_ini " ]; then
    echo "ok 1 - the plugin exports fi_prov_ini alone"
else
    echo "not ok 1 - the plugin exports fi_prov_ini alone"
    echo "# $exports"
fi
needs=$(readelf -d "$plugin" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
    grep -v '^\(libfabric\|libstdc++\|libm\|libgcc_s\|libc\|ld-linux.*\|libasan\|libtsan\|libubsan\|libclang_rt\..*\)\.so' | tr '\n' ' ')
if [ -z "$needs" ]; then
    echo "ok 2 - the plugin needs no other library"
else
    echo "not ok 2 - the plugin needs no other library"
    echo "# $needs"
fi
if ! readelf -lW "$plugin" | grep -q '^ *TLS '; then
    echo "ok 3 - the plugin has no thread-local memory"
else
    echo "not ok 3 - the plugin has no thread-local memory"
    readelf -sW --dyn-syms "$plugin" | grep ' TLS ' | sed 's/^/# /'
fi
