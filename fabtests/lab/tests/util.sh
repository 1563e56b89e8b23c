# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
# shellcheck shell=sh disable=SC2317,SC2046,SC2086,SC2329
# on: rxe
# if named, also on: siw
# limit: 600
#
# rping and ucmatose on RoCE and iWARP: ours with each other on both backends, and with those of rdma-core, each way.
# Words after the script's name choose tests by parts of their names:
#
#     fabtests/lab/run -e LAB=$PWD/fabtests/lab -e LAB_BUILD=$PWD/_build/quick -e LAB_DEVICE=siw -- \
#         sh fabtests/lab/tests/util.sh persistent
set -u
# shellcheck source=fabtests/lab/guest/tap.sh
. "$LAB/guest/tap.sh"
build=${LAB_BUILD:?}
scratch=$(mktemp -d)
words=$*

# only NAME COMMAND...: a test, if it was chosen.
only() {
    if [ -z "$words" ]; then
        t "$@"
        return
    fi
    for word in $words; do
        case $1 in *"$word"*) t "$@"; return ;; esac
    done
}

# program KIND NAME: rdma-core's, or ours with a backend.
program() {
    case $1 in
    rdma-core) echo "/usr/bin/$2" ;;
    rdmacm) echo "$build/$2 --backend rdmacm" ;;
    fabric) echo "$build/$2 --backend fabric --provider verbs" ;;
    auto) echo "$build/$2" ;;
    esac
}

last_port=20000
new_port() { last_port=$((last_port + 1)); }
listens() { # PID PORT: or has ended, which shows soon enough
    ! kill -0 "$1" 2>/dev/null || rdma resource show cm_id | grep "src-addr [^ ]*:$2 " | grep -q 'state LISTEN'
}

# both KIND_OF_SERVER KIND_OF_CLIENT NAME SERVER_OPTIONS CLIENT_OPTIONS: runs a pair; what they print goes to files.
server_status=0 client_status=0
both() {
    new_port
    timeout 120 $(program "$1" "$3") -p $last_port $4 >"$scratch/server" 2>&1 &
    server=$!
    wait_until 20 listens $server $last_port
    timeout 120 $(program "$2" "$3") -p $last_port $5 >"$scratch/client" 2>&1
    client_status=$?
    wait $server
    server_status=$?
    echo "client: status $client_status"
    cat "$scratch/client"
    echo "server: status $server_status"
    cat "$scratch/server"
}

well() { [ $client_status -eq 0 ] && [ $server_status -eq 0 ]; }
lines() { [ "$(grep -c "$1" "$scratch/$2")" -eq "$3" ]; }
says() { grep -q -e "$2" "$scratch/$1"; }

# pings SERVER CLIENT N OPTIONS: five pings between the ends of a wire. rdma-core's server ends with an error whenever its
# client has left.
pings() {
    both "$1" "$2" rping "-s -a 10.77.$3.1 -v -V -C 5 $4" "-c -a 10.77.$3.1 -I 10.77.$3.2 -v -V -C 5 $4"
    [ $client_status -eq 0 ] && lines '^ping data: rdma-ping-[0-4]: [A-E]' client 5 &&
        lines '^server ping data: rdma-ping-[0-4]: [A-E]' server 5 &&
        { [ "$1" = rdma-core ] || [ $server_status -eq 0 ]; }
}

# messages SERVER CLIENT N OPTIONS SERVER_OPTIONS CLIENT_OPTIONS
messages() {
    both "$1" "$2" ucmatose "-b 10.77.$3.1 $4 ${5:-}" "-s 10.77.$3.1 -b 10.77.$3.2 $4 ${6:-}"
    well && lines 'return status 0' client 1 && lines 'return status 0' server 1
}

pings_ipv6() { # KIND N
    both "$1" "$1" rping "-s -a fd77:$2::1 -C 5 -V -v" "-c -a fd77:$2::1 -I fd77:$2::2 -C 5 -V -v"
    well && lines '^ping data: rdma-ping-' client 5
}

messages_ipv6() { # KIND N
    both "$1" "$1" ucmatose "-f ipv6 -b fd77:$2::1" "-f IPv6 -s fd77:$2::1 -b fd77:$2::2"
    well
}

# The server of rdma-core's ucmatose sends as soon as it has accepted. siw takes that for an error if it is quick enough,
# with clients of either kind. So there it has some more tries.
messages_from_rdma_core() { # CLIENT N OPTIONS
    for try in 1 2 3 4 5 6 7 8; do
        if messages rdma-core "$1" "$2" "$3" >"$scratch/try"; then
            echo "at try $try"
            return
        fi
        if [ "$2" != 2 ] || ! grep -Eq 'CONNECT_ERROR|timed out' "$scratch/client"; then
            break
        fi
    done
    cat "$scratch/try"
    return 1
}

# Five pings each from four clients at once, to one server that the user ends.
persistent() { # SERVER N
    new_port
    $(program "$1" rping) -s -P -V -S 64 -a 10.77.$2.1 -p $last_port >"$scratch/server" 2>&1 &
    server=$!
    wait_until 20 listens $server $last_port
    clients=
    for kind_of_client in rdmacm fabric rdma-core rdmacm; do
        timeout 120 $(program $kind_of_client rping) -c -V -C 5 -a 10.77.$2.1 -I 10.77.$2.2 -p $last_port -S 64 &
        clients="$clients $!"
    done
    failed=0
    for client in $clients; do
        wait "$client" || failed=$((failed + 1))
    done
    kill -INT $server
    wait $server
    server_status=$?
    cat "$scratch/server"
    echo "$failed clients failed, server: status $server_status"
    [ $failed -eq 0 ] && [ $server_status -eq 0 ] && says server '4 clients, 0 of them failed, 20 pings'
}

# refused PATTERN COMMAND...: fails with status 1 and one line that says so.
refused() {
    pattern=$1
    shift
    timeout 120 "$@" >"$scratch/out" 2>"$scratch/err"
    status=$?
    echo "status $status"
    cat "$scratch/err"
    [ $status -eq 1 ] && [ "$(wc -l <"$scratch/err")" -eq 1 ] && grep -q -e "$pattern" "$scratch/err"
}

# The server of rdma-core takes what is smaller than its own, and breaks at what is larger.
unequal() { # SERVER CLIENT N
    both "$1" "$2" rping "-s -a 10.77.$3.1 -C 5 -S 100" "-c -a 10.77.$3.1 -C 5 -S 200"
    [ $client_status -eq 1 ] && says client 'the same -S' && { [ "$1" = rdma-core ] || says server 'the same -S'; }
}

unequal_messages() { # SERVER CLIENT N
    both "$1" "$2" ucmatose "-b 10.77.$3.1 -C 5 -S 200" "-s 10.77.$3.1 -C 6 -S 100"
    [ $client_status -eq 1 ] && [ $server_status -eq 1 ] && says client 'must be the same' && says server 'must be the same'
}

# One end is killed in mid-run: the other one says so and ends.
killed() { # WHO KIND N
    new_port
    $(program "$2" rping) -s -v -a 10.77.$3.1 -p $last_port >"$scratch/server" 2>"$scratch/server.err" &
    server=$!
    wait_until 20 listens $server $last_port
    $(program "$2" rping) -c -v -a 10.77.$3.1 -p $last_port >"$scratch/client" 2>"$scratch/client.err" &
    client=$!
    wait_until 20 says client 'rdma-ping-10:' || { kill -9 $server $client; return 1; }
    if [ "$1" = server ]; then victim=$server survivor=$client other=client; else victim=$client survivor=$server other=server; fi
    kill -9 $victim
    wait $survivor
    status=$?
    cat "$scratch/$other.err"
    [ $status -eq 1 ] && [ "$(wc -l <"$scratch/$other.err")" -eq 1 ]
}

# Pings without end, until the user has had enough: a summary, and a server that is content too.
interrupted() { # KIND N
    new_port
    $(program "$1" rping) -s -a 10.77.$2.1 -p $last_port >"$scratch/server" 2>&1 &
    server=$!
    wait_until 20 listens $server $last_port
    $(program "$1" rping) -c -v -a 10.77.$2.1 -p $last_port >"$scratch/client" 2>&1 &
    client=$!
    wait_until 20 says client 'rdma-ping-10:' || { kill -9 $server $client; return 1; }
    kill -INT $client
    wait $client
    client_status=$?
    wait $server
    server_status=$?
    tail -2 "$scratch/client"
    cat "$scratch/server"
    well && says client 'round trip in us' && says server 'pings/s'
}

# By default it is the address that chooses.
chooses() { # BACKEND ADDRESS
    timeout 120 "$build/rping" -s -a "$2" -p 0 --json -C 2 >"$scratch/server" 2>&1 &
    server=$!
    wait_until 20 says server listening
    port=$(sed -n 's/.*"port":\([0-9]*\)}$/\1/p' "$scratch/server")
    timeout 120 "$build/rping" -c -a "$2" -p "$port" -C 2 --json >"$scratch/client" 2>&1
    client_status=$?
    wait $server
    server_status=$?
    cat "$scratch/client" "$scratch/server"
    well && says client "\"backend\":\"$1\"" && says server "\"backend\":\"$1\""
}

# siw runs out of completion queues before 50, with rdma-core's program too.
case ${LAB_DEVICE:?} in
rxe) n=1 many=50 ;;
siw) n=2 many=20 ;;
esac
long=${FABTESTS_LONG:-0}
[ -z "$words" ] || long=1
for pair in 'rdma-core rdma-core' 'rdmacm rdmacm' 'fabric fabric' 'rdmacm fabric' 'fabric rdmacm' \
    'rdma-core rdmacm' 'rdmacm rdma-core' 'rdma-core fabric' 'fabric rdma-core'; do
    set -- $pair
    # What rdma-core's library does with itself tells of the lab.
    case $long,$1,$2 in 0,*fabric*) ;; 0,*) continue ;; esac
    only "rping, server $1, client $2" pings "$1" "$2" $n "-S 100"
    [ "$long" != 1 ] || only "rping with its default size, server $1, client $2" pings "$1" "$2" $n ""
    if [ "$1" = rdma-core ]; then
        only "ucmatose, server $1, client $2" messages_from_rdma_core "$2" $n "-c 3 -C 7 -S 1000"
    else
        only "ucmatose, server $1, client $2" messages "$1" "$2" $n "-c 3 -C 7 -S 1000"
    fi
    # rdma-core's client with -q confirms its connection, which iWARP refuses (rdma_establish: Invalid argument).
    if [ $LAB_DEVICE = rxe ] || [ "$2" != rdma-core ]; then
        only "rping -q, server $1, client $2" pings "$1" "$2" $n "-q -S 100"
    fi
done
own_kinds=fabric
[ "$long" != 1 ] || own_kinds='rdmacm fabric'
for own in $own_kinds; do
    only "rping over IPv6, $own" pings_ipv6 $own $n
    only "rping with large messages, $own" pings $own $own $n "-S 1M"
    only "a persistent server and four clients at once, $own" persistent $own $n
    only "sizes that differ, server $own" unequal $own $own $n
    only "sizes that differ, server rdma-core, client $own" unequal rdma-core $own $n
    only "ucmatose with counts that differ, $own" unequal_messages $own $own $n
    only "nobody listens, $own" refused 'connection refused' \
        $(program $own rping) -c -a 10.77.$n.1 -p 19999 -C 1
    only "ucmatose, nobody listens, $own" refused 'connection refused' \
        $(program $own ucmatose) -s 10.77.$n.1 -p 19999
    only "no route, $own" refused '10.99.0.1' $(program $own rping) -c -a 10.99.0.1 -C 1 --timeout 5
    only "the server is killed, $own" killed server $own $n
    only "the client is killed, $own" killed client $own $n
    only "the user interrupts, $own" interrupted $own $n
    only "ucmatose with $many connections, $own" messages $own $own $n "-c $many"
    only "ucmatose without messages, $own" messages $own $own $n "-c 5 -C 0"
    only "ucmatose with many messages, $own" messages $own $own $n "-c 2 -C 300"
    only "ucmatose moves to another event channel, $own" messages $own $own $n "-c 4 -m"
    for format in name ip; do
        [ "$long" != 1 ] || only "ucmatose -f $format, $own" messages $own $own $n "-f $format"
    done
    only "ucmatose -f ipv6, $own" messages_ipv6 $own $n
done
only "ucmatose -t, rdmacm" messages rdmacm rdmacm $n "" "" "-t 32"
only "the address chooses rdmacm" chooses rdmacm 10.77.$n.1
if [ $LAB_DEVICE = rxe ]; then
    only "ucmatose -a, rdmacm" messages rdmacm rdmacm 1 "-a 14"
    only "ucmatose -P ib, rdmacm" messages rdmacm rdmacm 1 "-P ib"
    only "a GID that no device has, rdmacm" refused 'fe80::1234' "$build/ucmatose" -f gid -s fe80::1234 --backend rdmacm
    only "a message larger than the device takes, rdmacm" refused 'the largest message' \
        "$build/rping" -c -a 10.77.1.1 -S 9M -C 1
    for option in '-t 3' '-a 3' '-P ib'; do
        only "ucmatose $option on fabric is refused by name" refused "${option% 3}: .*--backend rdmacm" \
            $(program fabric ucmatose) -s 10.77.1.1 $option
    done
    only "the address chooses fabric" chooses fabric 127.0.0.1
fi
finish
