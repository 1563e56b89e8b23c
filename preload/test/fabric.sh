#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# torture (torture_parts/main.cpp), and a case of calls_test, over the fabric path, on one host: librsocket-ofi over the
# tcp core, in workers beside the programs. The long form (FABRIC_LONG=1 make check TESTS=preload/test/fabric.sh) kills
# writers, and workers, so that connections go on by TCP with what was under way.
. "${srcdir:?}/preload/test/preload.sh"
export FI_PROVIDER_PATH="$builddir/.libs" FI_RSTREAM_CORE=tcp
export LD_LIBRARY_PATH="$builddir/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
bytes=${TORTURE_BYTES:-5000000}
seed=${TORTURE_SEED:-$(date +%s)}
failed=0
number=0

# The workers say who they are: they are nobody's children.
cat >"$scratch/worker" <<END
#!/bin/sh
echo \$\$ >>"$scratch/workers"
exec "$builddir/.libs/rspreload-fabric"
END
chmod +x "$scratch/worker"
export RSPRELOAD_FABRIC_WORKER="$scratch/worker"

# run WAY ACTIONS BYTES OPTION...: again with four times as many where all had been moved before anything was upgraded. A worker
# loads libfabric first, which takes seconds on a busy machine.
run() {
    way=$1 actions=$2 amount=$3
    shift 3
    for times in 1 4 16; do
        : >"$scratch/records"
        # shellcheck disable=SC2086
        env $preload RSPRELOAD_UPGRADE=$way RSPRELOAD_EXPLAIN="$scratch/records" "$builddir/preload/test/torture" \
            --bytes $((amount * times)) --rounds 2 --seed "$seed" --warm-up 10000 --actions "$actions" "$@" \
            >"$scratch/output" 2>&1 || return
        ! awk -F '\t' '$8 > 0 { exit 1 }' "$scratch/records" || continue
        return 0
    done
}

# tell RESULT WHAT
tell() {
    number=$((number + 1))
    result=ok
    [ "$1" -eq 0 ] || result="not ok"
    counts=$(awk -F '\t' '{ u += $8; r += $9 } END { print u + 0, r + 0 }' "$scratch/records")
    if [ "$1" -eq 0 ]; then grep '^#' "$scratch/output"; else head -150 "$scratch/output"; fi
    echo "# ${counts% *} upgrades, ${counts#* } returns"
    # It would be easy to be right if nothing were upgraded.
    [ "${counts% *}" -gt 0 ] || { result="not ok" && head -20 "$scratch/records" | sed 's/^/# /'; }
    echo "$result $number - $2"
    [ "$result" = ok ] || failed=1
}

if [ -n "$sanitizer" ]; then
    echo "1..2"
    run test:1:0:fabric drive "$bytes"
    tell $? "ways of waiting"
    echo "ok 2 - processes and killed workers # SKIP sanitizers do not survive that a process with threads forks"
    exit $failed
fi
long=${FABRIC_LONG:+yes}
echo "1..$([ "$long" = yes ] && echo 19 || echo 14)"
for way in test:1:0:fabric test:1:100:fabric; do
    for actions in drive fork,child,share,pass,keep,exec ${long:+drive,kill}; do
        run "$way" "$actions" "$bytes"
        tell $? "$actions, upgraded by $way"
    done
done
for way in test:1:0:fabric test:1:100:fabric; do
    run $way drive "$bytes" --kill-side
    tell $? "a killed process, upgraded by $way"
done
# calls CASE: as without the library.
calls() {
    "$builddir/preload/test/calls_test" "$1" >"$scratch/plain" 2>&1 || return
    for try in 1 2 3; do
        : >"$scratch/records"
        # shellcheck disable=SC2086
        env $preload RSPRELOAD_UPGRADE=test:1:0:fabric RSPRELOAD_EXPLAIN="$scratch/records" CALLS_EXCHANGES=100 \
            CALLS_UPGRADE_MS=15000 "$builddir/preload/test/calls_test" "$1" >"$scratch/output" 2>&1 || return
        cmp "$scratch/plain" "$scratch/output" || return
        ! awk -F '\t' '$8 > 0 { exit 1 }' "$scratch/records" || { echo "# try $try: nothing was upgraded" && continue; }
        return 0
    done
}
for case in both_ends_send_before_they_receive a_connection_goes_on_that_was_idle a_short_write_is_followed_by_an_edge \
    a_reset_by_an_end_that_splices_is_an_error bytes_of_one_direction_move_whichever_end_goes_first \
    a_child_inherits_a_connection_whose_peer_is_stopped; do
    calls $case
    tell $? $case
done
# A worker has no more descriptors than its program may have, and needs some for each connection.
(
    ulimit -n 700 # both limits
    run test:1:0:fabric drive $((bytes / 5))
)
tell $? "few descriptors"
# Their programs have ended: what is left of their connections does not take longer than both ends need to agree.
limit=$(($(date +%s) + 20))
while left=$(while read -r worker; do ! grep -qs rspreload-fabri "/proc/$worker/comm" || echo "$worker"; done <"$scratch/workers") &&
    [ -n "$left" ] && [ "$(date +%s)" -lt "$limit" ]; do
    sleep 0.05
done
number=$((number + 1))
if [ -z "$left" ]; then
    echo "ok $number - $(wc -l <"$scratch/workers") workers end with their programs"
else
    echo "not ok $number - workers end with their programs: $(echo "$left" | wc -l) of $(wc -l <"$scratch/workers") are left"
    failed=1
fi
[ "$long" = yes ] || exit $failed

# Longer than a peer on the same host may be.
export CALLS_STOPPED_MS=7000
calls a_child_inherits_a_connection_whose_peer_is_stopped
tell $? "a_child_inherits_a_connection_whose_peer_is_stopped, for seven seconds"

# All of them, once in a run, in its first half. Where that is before anything is upgraded, nothing is shown, and it is
# done again. (A worker that is killed when its program has closed already takes with it what was under way.)
(
    while [ ! -e "$scratch/done" ]; do
        sleep 0.3
        if [ -s "$scratch/workers" ]; then
            sleep 0.3
            while read -r worker; do
                grep -qs rspreload-fabri "/proc/$worker/comm" && kill -KILL "$worker" && echo >>"$scratch/killed"
            done <"$scratch/workers"
            while [ ! -e "$scratch/next" ] && [ ! -e "$scratch/done" ]; do
                sleep 0.1
            done
            rm -f "$scratch/next"
            : >"$scratch/workers"
        fi
    done
) &
killer=$!
: >"$scratch/workers"
: >"$scratch/killed"
for round in 1 2 3 4 5 6 7 8 9 10; do
    run test:1:0:fabric drive $((bytes * 100))
    status=$?
    returned=$(awk -F '\t' '{ r += $9 } END { print r + 0 }' "$scratch/records")
    if [ $status -ne 0 ] || [ "$returned" -ne 0 ]; then
        break
    fi
    : >"$scratch/next"
    sleep 0.3
done
: >"$scratch/done"
wait $killer
echo "# $(wc -l <"$scratch/killed") workers were killed in $round rounds"
tell $status "workers are killed"
number=$((number + 1))
result="not ok"
if [ "$returned" -gt 0 ]; then
    result=ok
else
    failed=1
fi
echo "$result $number - connections went on by TCP"
exit $failed
