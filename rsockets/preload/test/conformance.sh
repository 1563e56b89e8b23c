#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# The suite that compares the library with the kernel, on libc's own calls: those that the preloaded library carries must
# do what the same system calls do past it.
. "${srcdir:?}/rsockets/preload/test/preload.sh"
# Whom the fabric refuses goes to the kernel's TCP, and over the tcp core that is the same port.
export CONFORMANCE_WITHOUT="${CONFORMANCE_WITHOUT:+$CONFORMANCE_WITHOUT,}ipv6_only_listener"
env $preload "RSPRELOAD_RULES=127.0.0.0/8 [::1]" CONFORMANCE_PRELOADED=1 RSPRELOAD_EXPLAIN="$scratch/records" \
    "$builddir/rsockets/test/conformance_test" "$@" >"$scratch/output"
status=$?
cat "$scratch/output"
# It would be easy to agree if nothing were carried.
if [ "$(awk -F '\t' '$7 == "tcp"' "$scratch/records" | wc -l)" -lt "${CONFORMANCE_CARRIED:-400}" ]; then
    echo "Bail out! the sockets were not carried"
    exit 1
fi
exit $status
