# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
# shellcheck shell=sh disable=SC2317
# on: rxe siw
# limit: 900
# only: if named
#
# The fabric path of the preload library on devices: connections move between kernel TCP and the device and back, in every
# way of waiting and by several processes; what others can do to it; what it pins. campaign.sh has failures of the fabric.
set -u
# shellcheck source=fabtests/lab/guest/tap.sh
. "$LAB/guest/tap.sh"
# shellcheck source=fabtests/lab/guest/torture.sh
. "$LAB/guest/torture.sh"

# moved WAY ACTIONS BYTES: and something has gone by the device.
moved() {
    torture "$@" --rounds 2 --patience 60 || return 1
    echo "$(count 8) upgrades, $(count 9) returns; $(reasons)"
    [ "$(count 8)" -gt 0 ]
}

# Beside an impostor (preload/test/impostor.cpp): it gets nothing, and the traffic is right. Where the far end was always
# faster, nothing is shown, and it is done again.
beside_impostor() {
    for _ in 1 2 3 4 5; do
        beside_impostor_once || return
        grep -q ' 0 hellos' claims || return 0
    done
    echo "the far end was always faster"
    return 1
}
beside_impostor_once() {
    "$LAB_BUILD/preload/test/impostor" "$FABTESTS_NODE" >claims 2>&1 &
    impostor=$!
    wait_until 60 grep -q '^# begins' claims || { cat claims; return 1; }
    status=0
    torture test:1:0:fabric drive 20000000 --rounds 1 --patience 60 || status=$?
    kill "$impostor"
    wait "$impostor" || { echo "the impostor got something"; status=1; }
    cat claims
    echo "$(count 8) upgrades; $(reasons)"
    return $status
}

# RoCE's frames are lost, and TCP's are not, from the middle of the traffic on: all of it arrives.
silent_fabric() {
    torture test:1:0:fabric drive 4000000 --rounds 1 --patience 100 --pace 100 --disturbed >output 2>&1 &
    traffic=$!
    status=0
    if wait_until 100 grep -q '^# under way' output; then
        driver=$(sed -n 's/^# under way: process //p' output)
        kill -USR1 "$driver"
        wire cut-rdma "$LAB_WIRE"
        kill -USR2 "$driver"
    else
        echo "no traffic"
        status=1
    fi
    wait "$traffic" || status=1
    wire heal
    cat output
    echo "$(count 8) upgrades, $(count 9) returns; $(reasons)"
    [ "$status" -eq 0 ] && grep -q '^# hit, and returned' output
}

# The device that has the addresses is removed in the middle of the traffic, which goes on by TCP, and then by a device of the
# other kind, which both ends have too.
on_another_device() { rdma resource show qp | grep 'type RC' | grep -qv "link $LAB_DEVICE[01]/"; }
by_another_device() {
    torture test:1:0:fabric drive 4000000 --rounds 1 --patience 200 --pace 100 --disturbed >output 2>&1 &
    traffic=$!
    status=0
    removal=
    if wait_until 100 grep -q '^# under way' output; then
        driver=$(sed -n 's/^# under way: process //p' output)
        ! on_another_device || { echo "another device is in use before"; status=1; }
        kill -USR1 "$driver"
        lab-device remove "${LAB_DEVICE}0" & # it is gone when no process has it open
        removal=$!
        wait_until 60 on_another_device || { echo "no other device is used"; status=1; }
        kill -USR2 "$driver"
    else
        echo "no traffic"
        status=1
    fi
    wait "$traffic" || status=1
    [ -z "$removal" ] || wait "$removal"
    lab-device add "${LAB_DEVICE}0"
    cat output
    echo "$(count 8) upgrades, $(count 9) returns; $(reasons)"
    [ "$status" -eq 0 ] && grep -q '^# hit, and returned' output
}

# A thousand connections of which ten are busy, and then none: what they pin, in KiB.
pinned() { cat $(pgrep -x rspreload-fabri | sed 's|.*|/proc/&/status|') /dev/null | awk '/^VmPin:/ { n += $2 } END { print n + 0 }'; }
preloaded() { # in the background: becomes the program
    exec env LD_PRELOAD="$LAB_BUILD/.libs/librspreload-ofi.so" RSPRELOAD_UPGRADE=test:20:0:fabric \
        RSPRELOAD_FABRIC_WORKER="$LAB_BUILD/.libs/rspreload-fabric" "$@"
}
a_thousand_connections() {
    ulimit -n 4096
    preloaded redis-server --bind "$FABTESTS_NODE" --port 7000 --save '' --protected-mode no >redis.log 2>&1 &
    server=$!
    status=1
    if wait_until 20 redis-cli -h "$FABTESTS_NODE" -p 7000 ping; then
        preloaded redis-benchmark -h "$FABTESTS_NODE" -p 7000 -c 990 -I >idle.log 2>&1 &
        idle=$!
        preloaded redis-benchmark -h "$FABTESTS_NODE" -p 7000 -c 10 -n 100000000 -t get -q >busy.log 2>&1 &
        busy=$!
        wait_until 60 ten_are_pinned
        with=$(pinned)
        connections=$(ss -tnH state established "sport = :7000" | wc -l)
        kill "$busy" "$idle"
        wait_until 60 is_unpinned
        without=$(pinned)
        echo "$connections connections, 10 of them busy: $with KiB pinned at both ends; after the last of them: $without KiB"
        # 20 ends, with at most 1100 KiB each where both buffers are as large as they get
        [ "$connections" -ge 1000 ] && ten_are_pinned_by "$with" && [ "$with" -le 22000 ] && [ "$without" -eq 0 ] && status=0
    fi
    kill "$server"
    return $status
}
ten_are_pinned_by() { [ "$1" -ge $((20 * 64)) ]; } # 20 ends, with the two buffers that each begins with
ten_are_pinned() { ten_are_pinned_by "$(pinned)"; }
is_unpinned() { [ "$(pinned)" -eq 0 ]; }

t "every way of waiting" moved test:1:0:fabric drive 6000000
t "connections that return at random" moved test:1:100:fabric drive 6000000
t "connections that processes share" moved test:1:0:fabric fork,child,share 4000000
t "connections that are passed and executed upon" moved test:1:0:fabric pass,keep,exec 2000000
t "beside an impostor" beside_impostor
if [ "$LAB_WIRE" = roce ]; then
    t "a fabric that is silent, while TCP is not" silent_fabric
else
    skip "a fabric that is silent, while TCP is not" "iWARP's frames are TCP's"
fi
t "a second device, when the first is removed" by_another_device
if command -v redis-server >/dev/null 2>&1; then
    t "a thousand connections pin what ten need" a_thousand_connections
else
    skip "a thousand connections pin what ten need" "there is no redis-server"
fi
finish
