#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# A stream beside the bare core and the kernel's sockets, on this machine, in one run: every case is measured in turns,
# so that a noisy minute hits all alike, and the medians are compared.
set -eu

usage() {
    cat <<EOF
usage: ${0##*/} [-n ROUNDS] [-c CORE] [-a ADDRESS] [-B DIR] [-q] [-x] [--json FILE]

  -n ROUNDS   measurements of each case (default 5); medians are shown, and the median of the rounds' ratios
  -c CORE     the core provider (default tcp)
  -a ADDRESS  where the server listens (default 127.0.0.1)
  -B DIR      where the fi_stream_* programs are (default: PATH)
  -q          quick: a few cases, small counts
  -x          exit with status 1 if a case misses its target
  --json FILE writes every single measurement to FILE, a line each
EOF
    exit "${1:-1}"
}

rounds=5 core=tcp address=127.0.0.1 bin='' quick='' strict='' json=''
while [ $# -gt 0 ]; do
    case $1 in
    -n) rounds=${2:?"$1 needs a value"}; shift ;;
    -c) core=${2:?"$1 needs a value"}; shift ;;
    -a) address=${2:?"$1 needs a value"}; shift ;;
    -B) bin=${2:?"$1 needs a value"}/; shift ;;
    -q) quick=yes ;;
    -x) strict=yes ;;
    --json) json=${2:?"$1 needs a value"}; shift ;;
    -h | --help) usage 0 ;;
    *) echo "${0##*/}: unknown argument $1" >&2; usage ;;
    esac
    shift
done

# shellcheck source=fabtests/scripts/compare-common.sh
. "$(dirname "$0")/compare-common.sh"
check_choices fi_stream_bw fi_stream_pingpong

# sample CASE PROVIDER PROGRAM ARGUMENTS...
sample() {
    case_name=$1 provider=$2
    shift 2
    if [ "$provider" = rstream ]; then
        set -- "$@" -c "$core"
    fi
    take "$case_name" "$provider" "$@" -p "$provider"
}

# row CASE TEXT FIELD REFERENCE RELATION TARGET
row() {
    compare_row "$2" "$(median "$1" rstream "$3")" "$(median "$1" "$4" "$3")" "$4" "$(paired / "$1" rstream "$3" "$4")" \
        "$5" "$6"
}

if [ -n "$quick" ]; then
    bulk=4000 huge=400 small=200000 pings=5000
else
    bulk=20000 huge=2000 small=1000000 pings=20000
fi

i=0
while [ "$i" -lt "$rounds" ]; do
    i=$((i + 1))
    [ -t 2 ] && printf '\rround %s of %s ' "$i" "$rounds" >&2
    # What is compared is measured one after the other.
    for p in rstream "$core"; do sample bw64k-512k "$p" fi_stream_bw -S 64K -b 512K -I $bulk; done
    for p in rstream "$core"; do sample bw1m-1m "$p" fi_stream_bw -S 1M -b 1M -I $huge; done
    for p in rstream "$core"; do sample lat64 "$p" fi_stream_pingpong -S 64 -I $pings; done
    for p in rstream kernel; do sample bw64k $p fi_stream_bw -S 64K -I $bulk; done
    for p in rstream kernel; do sample bw64 $p fi_stream_bw -S 64 -I $small; done
    sample lat64 kernel fi_stream_pingpong -S 64 -I $pings
    sample poll64 rstream fi_stream_pingpong -S 64 -I $pings --wait poll
    sample poll64 kernel fi_stream_pingpong -S 64 -I $pings --wait poll
done
[ -t 2 ] && printf '\r                   \r' >&2

printf '%-34s %10s %10s %-11s %6s  %-7s %s\n' "median of $rounds" rstream other "" ratio target met
row bw64k-512k "64 KiB, 512 KiB buffers, MB/s" mb_per_s "$core" '>=' 0.9
row bw1m-1m "1 MiB, 1 MiB buffers, MB/s" mb_per_s "$core" '>=' 0.9
row bw64k "64 KiB, default buffers, MB/s" mb_per_s kernel '>=' 1.0
row bw64 "64 B sends, MB/s" mb_per_s kernel '>=' 5.0
row lat64 "64 B ping-pong, spinning, us" p50_us "$core" '<=' 1.25
printf '%-34s %10s %10s %-11s\n' "64 B ping-pong, spinning, us" "$(median lat64 rstream p50_us)" \
    "$(median lat64 kernel p50_us)" kernel
printf '%-34s %10s %10s %-11s\n' "64 B ping-pong, sleeping, us" "$(median poll64 rstream p50_us)" \
    "$(median poll64 kernel p50_us)" kernel
printf '%-34s %10s %10s %-11s\n' "CPU s/GB, 64 KiB, default buffers" "$(median bw64k rstream cpu_s_per_gb)" \
    "$(median bw64k kernel cpu_s_per_gb)" kernel

fp() { "$bin"fi_stream_footprint --json "$@" | sed 's/.*"kib_per_end":\([0-9.]*\).*"fds_per_end":\([0-9.]*\).*/\1 \2/'; }
# shellcheck disable=SC2046
set -- $(fp -p rstream -c "$core") $(fp -p "$core")
awk -v a="$1" -v af="$2" -v b="$3" -v bf="$4" -v core="$core" 'BEGIN {
    printf "%-34s %10.1f %10.1f %-11s %6.1f  <= 96    %s\n", "idle end, KiB (difference)", a, b, core, a - b, a - b <= 96 ? "yes" : "NO"
    printf "%-34s %10.1f %10.1f %-11s %6.1f  <= 3     %s\n", "idle end, descriptors (difference)", af, bf, core, af - bf, af - bf <= 3 ? "yes" : "NO"
}'

[ -z "$json" ] || cp "$work/all" "$json"
[ -z "$strict" ] || [ "$missed" -eq 0 ]
