#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# Sockets of librsocket-ofi beside the streams that they are made of and the kernel's sockets, on this machine, in one
# run: every case is measured in turns, so that a noisy minute hits all alike, and the medians are compared.
set -eu

usage() {
    cat <<EOF
usage: ${0##*/} [-n ROUNDS] [-c CORE] [-a ADDRESS] [-B DIR] [-q] [-x] [--json FILE]

  -n ROUNDS   measurements of each case (default 5); medians are shown, and the median of the rounds' ratios
  -c CORE     the core provider (default tcp)
  -a ADDRESS  where the server listens (default 127.0.0.1)
  -B DIR      where rstream, riostream and the fi_stream_* programs are (default: PATH)
  -q          quick: small counts
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
# Packages name ours rstream-ofi and riostream-ofi: rstream and riostream are rdma-core's there.
suffix=
[ -n "$bin" ] || ! command -v rstream-ofi >/dev/null 2>&1 || suffix=-ofi
check_choices "rstream$suffix" "riostream$suffix" fi_stream_bw fi_stream_pingpong
export FI_RSTREAM_CORE="$core"

listening_port() { sed -n 's/.*"listening","port":\([0-9]*\)}.*/\1/p' "$work/server.out"; }
listening() { [ -n "$(listening_port)" ]; }

# sockets CASE PROVIDER PROGRAM ARGUMENTS...: one run of a pair of rstream or riostream, kept.
sockets() {
    case_name=$1 provider=$2 program=$3$suffix
    shift 3
    rm -f "$work/client.err"
    : >"$work/server.out" # else the port of the server before may be read, until the new one's shell has emptied it
    "$bin$program" -b "$address" -p 0 --json "$@" >"$work/server.out" 2>"$work/server.err" &
    server=$!
    await 20 listening || { failed "$program $* did not start"; return 1; }
    "$bin$program" -s "$address" -p "$(listening_port)" --json "$@" >"$work/result" 2>"$work/client.err" ||
        { failed "$program $* failed"; return 1; }
    wait "$server" || { failed "the server of $program $* failed"; return 1; }
    server=
    keep "$case_name" "$provider"
}

# Megabytes a second: the median, one direction at a time.
megabytes() { awk -v g="$(median "$1" "$2" gbits_per_second)" 'BEGIN { printf "%.0f", g * 125 }'; }

if [ -n "$quick" ]; then
    bulk=4000 huge=400 pings=5000
else
    bulk=20000 huge=2000 pings=20000
fi

i=0
while [ "$i" -lt "$rounds" ]; do
    i=$((i + 1))
    [ -t 2 ] && printf '\rround %s of %s ' "$i" "$rounds" >&2
    sockets bw64k rsocket rstream -S 64K -C $bulk -B 512K
    take bw64k stream fi_stream_bw -p rstream -c "$core" -S 64K -I $bulk -b 512K
    sockets bw64k kernel rstream -T s -S 64K -C $bulk -B 512K
    sockets lat64 kernel rstream -T s -S 64 -C 1 -I $pings --histogram
    take lat64 stream fi_stream_pingpong -p rstream -c "$core" -S 64 -I $pings -b 512K
    sockets lat64 rsocket rstream -S 64 -C 1 -I $pings --histogram
    sockets lat64 mapped riostream -S 64 -C 1 -I $pings --histogram
    sockets bw1m rsocket rstream -S 1M -C $huge
    sockets bw1m mapped riostream -S 1M -C $huge
done
[ -t 2 ] && printf '\r                   \r' >&2

printf '%-34s %10s %10s %-11s %6s  %-8s %s\n' "median of $rounds" ours other "" ratio target met
compare_row "64 KiB, 512 KiB buffers, MB/s" "$(megabytes bw64k rsocket)" "$(median bw64k stream mb_per_s)" fi_stream \
    "$(paired / bw64k rsocket gbits_per_second stream mb_per_s 125)" '>=' 0.85
compare_row "64 KiB, 512 KiB buffers, MB/s" "$(megabytes bw64k rsocket)" "$(megabytes bw64k kernel)" kernel \
    "$(paired / bw64k rsocket gbits_per_second kernel)"
compare_row "1 MiB riowrite, MB/s" "$(megabytes bw1m mapped)" "$(megabytes bw1m rsocket)" rsend \
    "$(paired / bw1m mapped gbits_per_second rsocket)" '>=' 1.0
compare_row "64 B one way, us" "$(median lat64 rsocket p50)" "$(median lat64 kernel p50)" kernel \
    "$(paired / lat64 rsocket p50 kernel)"
compare_row "64 B riowrite one way, us" "$(median lat64 mapped p50)" "$(median lat64 rsocket p50)" rsend \
    "$(paired / lat64 mapped p50 rsocket)"
difference=$(paired - lat64 rsocket p50 stream p50_us)
met=$(awk -v d="$difference" -v n="$(values lat64 stream p50_us | wc -l)" 'BEGIN { print (n > 0 && d <= 1) ? "yes" : "NO" }')
[ "$met" = yes ] || missed=$((missed + 1))
printf '%-34s %10s %10s %-11s %6.2f  <= 1     %s\n' "64 B one way, us (difference)" "$(median lat64 rsocket p50)" \
    "$(median lat64 stream p50_us)" fi_stream "$difference" "$met"

[ -z "$json" ] || cp "$work/all" "$json"
[ -z "$strict" ] || [ "$missed" -eq 0 ]
