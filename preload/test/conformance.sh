#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# The suite that compares two kinds of calls case by case, here system calls and libc's under the preload library: on
# connections that are never upgraded, that are upgraded before the case begins, and that go to shared memory and back
# at random; and both of the latter on the fabric path, over the tcp core.
. "${srcdir:?}/preload/test/preload.sh"
way=${CONFORMANCE_WAY:-upgraded}
# patient: a case that has filled a connection expects that it stays full while nobody reads.
case $way in
never) settings="RSPRELOAD_UPGRADE=never CONFORMANCE_EXCHANGE=1" ;;
upgraded) settings="RSPRELOAD_UPGRADE=test:1:0:patient CONFORMANCE_EXCHANGE=0" ;;
returned) settings="RSPRELOAD_UPGRADE=test:1:200:patient CONFORMANCE_EXCHANGE=returned" ;;
fabric) settings="RSPRELOAD_UPGRADE=test:1:0:fabric:patient CONFORMANCE_EXCHANGE=0" ;;
fabric-returned) settings="RSPRELOAD_UPGRADE=test:1:200:fabric:patient CONFORMANCE_EXCHANGE=returned" ;;
*) echo "Bail out! no such way: $way"; exit 1 ;;
esac
# The kernel says at once what is ready; while memory is, the library asks it now and then.
export RSPRELOAD_FAIRNESS=0
# A thread that waits on a number which another thread closes hears of it (EBADF) instead of going on.
test "$way" = never || export CONFORMANCE_WITHOUT="${CONFORMANCE_WITHOUT:+$CONFORMANCE_WITHOUT,}a_closed_number_still_serves"
case $way in
fabric*)
    # A minute and a half for both.
    [ -n "${FABRIC_LONG:-}" ] || { echo "1..0 # SKIP in ./quickstart check-long torture"; exit 0; }
    [ -z "$sanitizer" ] || { echo "1..0 # SKIP the worker has no sanitizer"; exit 77; }
    export CONFORMANCE_OWN_PORTS=1 CONFORMANCE_SPACE_LATER=1
    export FI_PROVIDER_PATH="$builddir/.libs" FI_RSTREAM_CORE=tcp RSPRELOAD_FABRIC_WORKER="$builddir/.libs/rspreload-fabric"
    # The worker has the connection as well, so that close(2) returns before the kernel's has ended; and the kernel sets
    # TCP_QUICKACK anew with each frame that comes.
    CONFORMANCE_WITHOUT=$CONFORMANCE_WITHOUT,linger_with_time_waits,tcp_quickack_is_set_and_read
    ;;
esac
# shellcheck disable=SC2086
# The program itself, not libtool's script around it, whose shell has no use for the library.
env $preload $settings CONFORMANCE_PRELOADED=1 RSPRELOAD_EXPLAIN="$scratch/records" LD_LIBRARY_PATH="$builddir/.libs" \
    "$builddir/rsockets/test/.libs/conformance_test" "$@" >"$scratch/output"
status=$?
cat "$scratch/output"
# It would be easy to agree if nothing were upgraded, or returned.
upgraded=$(awk -F '\t' '$8 > 0' "$scratch/records" | wc -l)
returned=$(awk -F '\t' '$9 > 1' "$scratch/records" | wc -l)
# As often as most do before their case begins: these went on in it.
often=$(awk -F '\t' '$9 > 2' "$scratch/records" | wc -l)
echo "# $upgraded connections were upgraded, $returned returned more than once, $often more than twice"
case $way in
never) test "$upgraded" -eq 0 ;;
upgraded | fabric) test "$#" -ne 0 || test "$upgraded" -gt 250 ;;
returned | fabric-returned) test "$#" -ne 0 || { test "$upgraded" -gt 250 && test "$returned" -gt 250 && test "$often" -gt 50; } ;;
esac || { echo "Bail out! the connections did not go the way that is tested"; exit 1; }
exit $status
