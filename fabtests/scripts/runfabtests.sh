#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# Runs the functional tests and short benchmarks over one provider, in pairs of processes, and prints a table. Each test
# has a time limit; nothing but what was started here is ended.
set -u

usage() {
    cat <<EOF
usage: ${0##*/} [OPTIONS] [SERVER [CLIENT]]

  SERVER, CLIENT      the addresses of the two ends (default: 127.0.0.1 for both)
  -p PROVIDER         rstream (default), or with the core before it, as in "tcp;rstream"; several, separated by commas
  -t quick|all|standard|few   which tests (default quick): pairs with small counts; the functional programs too; larger
                      counts; as quick with a tenth of its counts, for emulated machines
  -v                  print the output of every test, not only of those that fail
  -T SECONDS          time limit of one test (default 120)
  -B DIR              where the programs are (default: PATH)
  -F DIR              where the functional test programs are (default: DIR of -B/fabtests/functional)
  -L DIR              run with the libfabric that is installed in DIR (its prefix, as for configure --with-libfabric)
  --server-run CMD    run servers by this command, for example "ssh node1"
  --client-run CMD    likewise for clients
EOF
    exit "${1:-1}"
}

providers=rstream set_name=quick verbose= limit=120 bin= functional= libfabric= server_run= client_run=
while [ $# -gt 0 ]; do
    case $1 in
    -p) providers=${2:?"$1 needs a value"}; shift ;;
    -t) set_name=${2:?"$1 needs a value"}; shift ;;
    -v | -vv | -vvv) verbose=yes ;;
    -T) limit=${2:?"$1 needs a value"}; shift ;;
    -B) bin=${2:?"$1 needs a value"}/; shift ;;
    -F) functional=${2:?"$1 needs a value"}; shift ;;
    -L) libfabric=${2:?"$1 needs a value"}; shift ;;
    --server-run) server_run=${2:?"$1 needs a value"}; shift ;;
    --client-run) client_run=${2:?"$1 needs a value"}; shift ;;
    -h | --help) usage 0 ;;
    -*) echo "${0##*/}: unknown option $1" >&2; usage ;;
    *) break ;;
    esac
    shift
done
server_address=${1:-127.0.0.1}
client_address=${2:-$server_address}
case $set_name in few | quick | all | standard) ;; *) echo "${0##*/}: -t $set_name?" >&2; usage ;; esac
case $limit in '' | *[!0-9]* | 0*) echo "${0##*/}: -T $limit: not a number of seconds" >&2; exit 1 ;; esac
if [ -z "$server_run$client_run" ] && ! command -v "${bin}fi_stream_msg" >/dev/null 2>&1; then
    echo "${0##*/}: there is no fi_stream_msg in ${bin:-PATH}: name the build tree by -B" >&2
    exit 1
fi
# The plugin of that build, unless another one is named.
if [ -n "$bin" ] && [ -z "${FI_PROVIDER_PATH:-}" ] && [ -e "${bin}.libs/librstream-fi.so" ]; then
    export FI_PROVIDER_PATH="${bin}.libs"
fi
if [ -n "$libfabric" ]; then
    found=$(find "$libfabric" -name 'libfabric.so.1' 2>/dev/null | head -1)
    [ -n "$found" ] || { echo "${0##*/}: -L $libfabric: there is no libfabric.so.1 below it" >&2; exit 1; }
    LD_LIBRARY_PATH=${found%/*}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    export LD_LIBRARY_PATH
fi
[ -n "$functional" ] || functional=${bin}fabtests/functional

work=$(mktemp -d)
server=
cleanup() {
    [ -z "$server" ] || kill "$server" 2>/dev/null
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM

passed=0 failed=0 skipped=0 skips=
# outcome NAME pass|fail|skip SECONDS
outcome() {
    printf '%-62s %-5s %6ss\n' "$1" "$2" "$3"
    case $2 in
    pass) passed=$((passed + 1)) ;;
    fail) failed=$((failed + 1)) ;;
    skip) skipped=$((skipped + 1)); skips="$skips $1" ;;
    esac
    if [ "$2" = fail ] || [ -n "$verbose" ]; then
        sed 's/^/    | /' "$work"/*.out 2>/dev/null
    fi
}

# pair PROGRAM ARGUMENTS...: a server and a client of one program.
pair() {
    program=$1
    shift
    label="$provider: $program $*"
    rm -f "$work"/*.out "$work/port"
    started=$(date +%s)
    verdict=fail
    # shellcheck disable=SC2086
    timeout "$limit" $server_run "$bin$program" -s "$server_address" -P 0 -t "$limit" $core_option "$@" \
        >"$work/server.out" 2>&1 &
    server=$!
    port=
    while [ -z "$port" ] && kill -0 "$server" 2>/dev/null; do
        port=$(sed -n 's/^listening on port \([0-9]*\).*/\1/p' "$work/server.out")
        [ -n "$port" ] || sleep 0.02
    done
    # A sender's file is the receiver's with another name.
    client_arguments=$(printf '%s ' "$@" | sed "s#$work/copy#$work/original#")
    # shellcheck disable=SC2086
    if [ -n "$port" ] && timeout "$limit" $client_run "$bin$program" -s "$client_address" -P "$port" -t "$limit" \
        $core_option $client_arguments "$server_address" >"$work/client.out" 2>&1; then
        wait "$server" && verdict=pass
    else
        kill "$server" 2>/dev/null
        wait "$server" 2>/dev/null
    fi
    server=
    outcome "$label" "$verdict" $(($(date +%s) - started))
}

# alone PROGRAM: a functional test program, which speaks TAP; each of its tests counts.
alone() {
    rm -f "$work"/*.out
    started=$(date +%s)
    FABTESTS_CORE=${core:-tcp} FABTESTS_NODE=$server_address timeout "$limit" "$1" >"$work/alone.out" 2>&1
    status=$?
    name="$provider: ${1##*/}"
    ok=$(grep -c '^ok ' "$work/alone.out")
    bad=$(grep -c '^not ok ' "$work/alone.out")
    skip=$(grep -ci '^ok .*# *skip' "$work/alone.out")
    seconds=$(($(date +%s) - started))
    if [ "$status" -ne 0 ] || [ "$bad" -ne 0 ] || [ "$ok" -eq 0 ]; then
        [ "$bad" -ne 0 ] || bad=1
        outcome "$name ($bad failed)" fail "$seconds"
        failed=$((failed + bad - 1))
    else
        outcome "$name ($ok)" pass "$seconds"
        passed=$((passed - 1))
    fi
    passed=$((passed + ok - skip)) skipped=$((skipped + skip))
    [ "$skip" -eq 0 ] || skips="$skips $(grep -i '^ok .*# *skip' "$work/alone.out" | tr '\n' ';')"
}

case $set_name in
standard) few=2000 many=200000 megabytes=256 ;;
few) few=20 many=2000 megabytes=4 ;;
*) few=200 many=20000 megabytes=32 ;;
esac
dd if=/dev/urandom of="$work/original" bs=1M count=$megabytes 2>/dev/null

for provider in $(echo "$providers" | tr ',' ' '); do
    case $provider in
    *';'*) core=${provider%%;*} core_option="-c ${provider%%;*}" ;;
    *) core= core_option= ;;
    esac
    pair fi_stream_msg
    pair fi_stream_msg -b 4096
    pair fi_stream_connect -I 20
    for wait in spin poll; do
        for size in 1 64 1000 4096 65536 1048577; do
            count=$few
            [ $size -gt 4096 ] || count=$((many / 10))
            pair fi_stream_bw -v -S $size -I $count --wait $wait
        done
        pair fi_stream_bw -v -S 64K -b 1M -I $few --wait $wait
        pair fi_stream_bw -v -S 10000 -b 4096 -I $few --wait $wait
        for size in 1 64 4096 65536; do
            pair fi_stream_pingpong -v -S $size -I $few --wait $wait
        done
    done
    pair fi_stream_cp -f "$work/copy"
    cmp -s "$work/original" "$work/copy"
    outcome "$provider: the copy is the original" $([ $? -eq 0 ] && echo pass || echo fail) 0
    if [ "$set_name" != quick ] && [ "$set_name" != few ]; then
        for program in "$functional"/*_test; do
            if [ -x "$program" ]; then alone "$program"; else outcome "$program" skip 0; fi
        done
    fi
done

[ -z "$skips" ] || echo "skipped:$skips"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
