# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
# shellcheck shell=sh disable=SC2317,SC2329
# on: siw
# limit: 300
#
# Connecting over iWARP while the kernel's TCP has many of the local ports: the RDMA connection manager chooses from a port
# space of its own and does not know.
set -u
# shellcheck source=fabtests/lab/guest/tap.sh
. "$LAB/guest/tap.sh"

ready=$(mktemp)
range=$(cat /proc/sys/net/ipv4/ip_local_port_range)
trap 'kill "$holder" 2>/dev/null; echo "$range" >/proc/sys/net/ipv4/ip_local_port_range; rm -f "$tap_output" "$ready"' EXIT
echo "40000 40199" >/proc/sys/net/ipv4/ip_local_port_range
python3 -c '
import socket, sys, time
held = []
for port in range(40000, 40200, 4):
    held.append(socket.socket())
    held[-1].bind((sys.argv[1], port))
print("held", flush=True)
time.sleep(3600)' "${LAB_CLIENT:?}" >"$ready" &
holder=$!
wait_until 60 grep -q held "$ready" || exit 1

# A connection in four is tried from such a port.
connect() {
    CONFORMANCE_ONLY=poll_ "$LAB_BUILD/rsockets/test/conformance_test"
}
t "every connection is made while one in four local ports is in use" connect
finish
