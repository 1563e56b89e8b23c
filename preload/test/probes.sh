#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# The USDT probes that rsstat(1) describes are in the libraries' files. It is run where they were built in.
folder=${FABTESTS_BIN:?the folder of the build}/.libs
if ! command -v readelf >/dev/null 2>&1; then
    echo "1..0 # SKIP there is no readelf"
    exit 0
fi
echo 1..10
number=0
failed=0

# has LIBRARY PROVIDER PROBE...
has() {
    notes=$(readelf -n "$folder/$1")
    provider=$2
    shift 2
    for probe; do
        number=$((number + 1))
        if printf '%s\n' "$notes" | grep -A1 "Provider: $provider\$" | grep -q "Name: $probe\$"; then
            echo "ok $number - $provider:$probe"
        else
            echo "not ok $number - $provider:$probe"
            failed=1
        fi
    done
}

has librspreload-ofi.so rspreload connect upgrade fallback sleep wake reset
has librsocket-ofi.so rsocket connect sleep wake reset
exit $failed
