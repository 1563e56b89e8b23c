#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# The USDT probes that rsstat(1) describes are in the library's file. It is run where they were built in.
library=${FABTESTS_BIN:?the folder of the build}/.libs/librspreload-ofi.so
if ! command -v readelf >/dev/null 2>&1; then
    echo "1..0 # SKIP there is no readelf"
    exit 0
fi
echo 1..6
number=0
failed=0
notes=$(readelf -n "$library")
for probe in connect upgrade fallback sleep wake reset; do
    number=$((number + 1))
    if printf '%s\n' "$notes" | grep -A1 'Provider: rspreload$' | grep -q "Name: $probe\$"; then
        echo "ok $number - $probe"
    else
        echo "not ok $number - $probe"
        failed=1
    fi
done
exit $failed
