# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
# shellcheck shell=sh disable=SC2317
# on: rxe siw
# limit: 600
# only: if named
#
# The fabric path of the preload library on devices: torture (preload/test/torture_parts/main.cpp) compares every byte of
# connections that move between kernel TCP and the device and back, in every way of waiting and by several processes.
# With FABTESTS_LONG=1 (./quickstart check fabric), devices are removed meanwhile, and workers are killed.
set -u
# shellcheck source=fabtests/lab/guest/tap.sh
. "$LAB/guest/tap.sh"
work=$(mktemp -d)
cd "$work" || exit 1
export LD_LIBRARY_PATH="$LAB_BUILD/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export FI_RSTREAM_CORE=verbs

# torture WAY ACTIONS BYTES: every connection is upgraded as by rsrun, though both ends are on this host.
# The workers take seconds here to load libfabric.
torture() {
    : >records
    LD_PRELOAD="$LAB_BUILD/.libs/librspreload-ofi.so" RSPRELOAD_UPGRADE=$1 RSPRELOAD_EXPLAIN="$PWD/records" \
        RSPRELOAD_FABRIC_WORKER="$LAB_BUILD/.libs/rspreload-fabric" \
        "$LAB_BUILD/preload/test/torture" --listen "$FABTESTS_NODE" --connections 4 --rounds 2 --patience 60 --warm-up 30000 \
        --actions "$2" --bytes "$3"
}

# count FIELD: of all records: 8 for upgrades, 9 for returns to the kernel.
count() { awk -F '\t' -v field="$1" '{ n += $field } END { print n + 0 }' records; }
reasons() { awk -F '\t' '{ print $NF }' records | sort | uniq -c | tr '\n' ';'; }

# moved WAY ACTIONS BYTES: and something has gone by the device.
moved() {
    torture "$@" || return 1
    echo "$(count 8) upgrades, $(count 9) returns; $(reasons)"
    [ "$(count 8)" -gt 0 ]
}

some_are_moving() { [ "$("$LAB_BUILD/rsstat" | grep -c fabric)" -ge 2 ]; }

# disturbed COMMAND...: while bytes go by the device. All of them arrive, and connections have gone on by TCP.
disturbed() {
    torture test:1:0:fabric drive 40000000 &
    traffic=$!
    wait_until 60 some_are_moving || { echo "nothing was upgraded"; kill "$traffic"; wait "$traffic"; return 1; }
    "$@" || return 1
    wait "$traffic" || return 1
    echo "$(count 8) upgrades, $(count 9) returns; $(reasons)"
    [ "$(count 9)" -gt 0 ]
}

remove_one() { lab-device remove "${LAB_DEVICE}0"; }
remove_and_add() { lab-device remove "${LAB_DEVICE}1" && lab-device add "${LAB_DEVICE}1"; }
kill_workers() { pkill -KILL -x rspreload-fabri; }

t "every way of waiting" moved test:1:0:fabric drive 6000000
t "connections that return at random" moved test:1:100:fabric drive 6000000
t "connections that processes share" moved test:1:0:fabric fork,child,share 4000000
t "connections that are passed and executed upon" moved test:1:0:fabric pass,keep,exec 2000000
if [ -n "${FABTESTS_LONG:-}" ]; then
    t "a device that is removed and added" disturbed remove_and_add
    t "workers that are killed" disturbed kill_workers
    t "a device that is removed" disturbed remove_one
fi
finish
