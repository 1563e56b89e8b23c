#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# Programs see of their sockets what they see without the preloaded library: each case of calls_test says the same as a
# process of its own without it, with it, and with it where no fabric can be reached, so that all goes to the kernel. What
# is to be carried was carried.
. "${srcdir:?}/rsockets/preload/test/preload.sh"
program=$builddir/rsockets/preload/test/calls_test
cases=$("$program" | grep -v '^carried_') || exit 1
echo "1..$((3 * $(echo "$cases" | wc -l) + 9))"
number=0
report() { # report RESULT NAME
    number=$((number + 1))
    if [ "$1" -eq 0 ]; then echo "ok $number - $2"; else echo "not ok $number - $2"; fi
}
run() { # run CASE OUTPUT [ENVIRONMENT...]
    name=$1 output=$2
    shift 2
    env CALLS_EARLY="$(test "$name" = sockets_before_main && echo 1)" "$@" "$program" "$name" >"$output" 2>"$output.err"
    status=$?
    cat "$output.err" >>"$output"
    echo "exit status $status" >>"$output"
    return "$status"
}
compare() { # compare NAME EXPECTED GOT
    if cmp -s "$2" "$3"; then report 0 "$1"; else report 1 "$1"; diff "$2" "$3" | sed 's/^/# /'; fi
}
for case in $cases; do
    run "$case" "$scratch/plain"
    report $? "$case: as it should be"
    run "$case" "$scratch/carried" $preload RSPRELOAD_EXPLAIN="$scratch/records" RSPRELOAD_LOG="$scratch/log"
    compare "$case: carried" "$scratch/plain" "$scratch/carried"
    run "$case" "$scratch/refused" $preload FI_RSTREAM_CORE=none RSPRELOAD_EXPLAIN="$scratch/fallen"
    compare "$case: no fabric" "$scratch/plain" "$scratch/refused"
done

cat >"$scratch/expected" <<'END'
write(one.client, "x", 1) = -1 ECONNRESET
recv(one.server, &byte, 1, 0) = -1 ECONNRESET
getpeername(one.client, nullptr, nullptr) = -1 ECONNRESET
poll(&fd, 1, -1) = 1
epoll_ctl(epoll_create1(0), EPOLL_CTL_ADD, one.client, &event) = -1 ECONNRESET
close(one.client) = 0
0
write = 5
recv = 5
write = 5
recv = 5
thereback!
exit status 0
END
rm -f "$scratch/log"
run carried_connection_in_a_child "$scratch/carried" $preload RSPRELOAD_LOG="$scratch/log"
compare "a connection of the parent's is reset in a child" "$scratch/expected" "$scratch/carried"
grep -q 'cannot be used in its child: ECONNRESET' "$scratch/log"
report $? "and the log says so"

count() { awk -F '\t' "$2" "$1" | wc -l; }
carried=$(count "$scratch/records" '$7 == "tcp" && $8 == "-"')
test "$carried" -gt 100
report $? "sockets were carried: $carried"
# A program that is refused, or that connects where the rules do not name.
test "$(count "$scratch/records" '$7 == "kernel" && $13 == "-"')" -eq 0
report $? "those that were not are explained"
# What the library makes for itself is none of the program's, and never carried.
rm -f "$scratch/records"
run plain_calls "$scratch/one" $preload RSPRELOAD_EXPLAIN="$scratch/records"
test "$(cut -f 4,7,11,12 "$scratch/records" | sort | tr '\t\n' ' /')" = \
    "accept tcp 6 6/connect tcp 6 6/listen tcp 0 0/"
report $? "a record for each of the program's sockets, and for no other"
test -s "$scratch/fallen" && test "$(count "$scratch/fallen" '$7 != "kernel" && $7 != "-"')" -eq 0
report $? "where there is no fabric, the kernel has all"
# Without the hooks of the tests, loopback is the kernel's, whatever the rules say, and who tells of that is the other library.
rm -f "$scratch/records"
run plain_calls "$scratch/plain"
run plain_calls "$scratch/one" $preload RSPRELOAD_CARRY_LOOPBACK= RSPRELOAD_EXPLAIN="$scratch/records"
compare "loopback is not carried outside these tests" "$scratch/plain" "$scratch/one"
test "$(cut -f 4,7,13 "$scratch/records" | sort -u | tr '\t\n' ' /')" = \
    "accept kernel the listener is the kernel's/connect kernel a loopback address/listen kernel a loopback address/"
report $? "and the records say why"
rm -f "$scratch/records"
run plain_calls "$scratch/one" $preload RSPRELOAD_CARRY_LOOPBACK= RSPRELOAD_EXPLAIN_KERNEL= \
    RSPRELOAD_EXPLAIN="$scratch/records"
test ! -s "$scratch/records"
report $? "which are not written outside these tests"
