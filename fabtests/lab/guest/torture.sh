# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
# shellcheck shell=sh
#
# For tests of the fabric path on devices: torture (preload/test/torture_parts/main.cpp) compares every byte of four
# connections, which move to the device and back. To be read by scripts behind tap.sh.

torture_folder=$(mktemp -d)
cd "$torture_folder" || exit 1
export LD_LIBRARY_PATH="$LAB_BUILD/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export FI_RSTREAM_CORE=verbs

# torture WAY ACTIONS BYTES OPTION...: every connection is upgraded as by rsrun, though both ends are on this host.
# The workers take seconds here to load libfabric.
torture() {
    : >records
    torture_way=$1 torture_actions=$2 torture_bytes=$3
    shift 3
    LD_PRELOAD="$LAB_BUILD/.libs/librspreload-ofi.so" RSPRELOAD_UPGRADE=$torture_way RSPRELOAD_EXPLAIN="$PWD/records" \
        RSPRELOAD_FABRIC_WORKER="$LAB_BUILD/.libs/rspreload-fabric" \
        "$LAB_BUILD/preload/test/torture" --listen "$FABTESTS_NODE" --connections 4 --warm-up 30000 \
        --actions "$torture_actions" --bytes "$torture_bytes" "$@"
}

# count FIELD: of all records: 8 for upgrades, 9 for returns to the kernel.
count() { awk -F '\t' -v field="$1" '{ n += $field } END { print n + 0 }' records; }
reasons() { awk -F '\t' '{ print $NF }' records | sort | uniq -c | tr '\n' ';'; }
