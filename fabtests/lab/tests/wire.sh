# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
# shellcheck shell=sh disable=SC2317,SC2086
# on: rxe siw
# limit: 240
#
# A file through a stream while the wire is slow, loses frames, or is cut and healed; and what a program sees when its peer
# is killed or the device goes.
set -u
# shellcheck source=fabtests/lab/guest/tap.sh
. "$LAB/guest/tap.sh"
work=$(mktemp -d)
cd "$work" || exit 1

# receive COPY: a server for one file, in the background.
receive() {
    rm -f port copy
    "$LAB_BUILD/fi_stream_cp" -c "$FABTESTS_CORE" -s "$FABTESTS_NODE" -P 0 --port-file port -t 60 -f "$1" &
    receiver=$!
    wait_until 20 test -s port || { echo "the receiver does not listen"; return 1; }
}

# send FILE: becomes the client, so that to kill it is to kill the program.
send() {
    exec "$LAB_BUILD/fi_stream_cp" -c "$FABTESTS_CORE" -s "$LAB_CLIENT" -P "$(cat port)" -t 60 -f "$1" "$FABTESTS_NODE"
}

copies() { # FILE
    receive copy && (send "$1") && wait $receiver && cmp "$1" copy
}

slow() {
    wire delay 5 "$LAB_WIRE"
    copies small
}

lossy() {
    wire loss 1 "$LAB_WIRE"
    copies small
}

frames() { cat "/sys/class/net/${LAB_WIRE}1/statistics/tx_packets"; }
sent_more_than() { [ "$(frames)" -gt "$1" ]; }

# start FILE COPY: starts to send it; returns when it is on its way.
start() {
    receive "$2" || return 1
    before=$(frames)
    send "$1" &
    sender=$!
    wait_until 20 sent_more_than $((before + 500)) || { echo "nothing is sent"; return 1; }
}

# The delay is for time: some buffers in 40 ms, so that the file is still on its way when the wire is cut. The transport
# retries for some seconds: half a second is within that.
cut_and_healed() {
    wire delay 20 "$LAB_WIRE"
    start large copy || return 1
    wire cut "$LAB_WIRE"
    kill -0 $sender || { echo "the file had arrived before the cut"; return 1; }
    sleep 0.5
    wire heal "$LAB_WIRE"
    wait $sender && wait $receiver && cmp large copy
}

# ends PROCESS: within 2 s, and not well. Emulated processors are slow: the time is multiplied as that of other tests.
ends() {
    from=$(milliseconds)
    wait "$1"
    ended=$?
    echo "the other end ended with $ended after $(($(milliseconds) - from)) ms"
    [ $ended -ne 0 ] && [ $ended -ne 124 ] && [ $(($(milliseconds) - from)) -le $((2000 * FABTESTS_PATIENCE)) ]
}

receiver_killed() {
    start endless /dev/null || return 1
    kill -9 $receiver
    ends $sender
}

sender_killed() {
    start endless /dev/null || return 1
    kill -9 $sender
    ends $receiver
}

device_removed() {
    start endless /dev/null || return 1
    lab-device remove "${LAB_DEVICE}1"
    ends $sender
    status=$?
    lab-device add "${LAB_DEVICE}1"
    kill $receiver 2>/dev/null
    return $status
}

# on_wire TEST...: whatever it did to the wire is healed, whatever it started ends.
on_wire() {
    receiver='' sender=''
    "$@"
    status=$?
    wire heal "$LAB_WIRE"
    # shellcheck disable=SC2086
    kill $receiver $sender 2>/dev/null
    return $status
}

dd if=/dev/urandom of=small bs=64k count=4 2>/dev/null
dd if=/dev/urandom of=large bs=1M count=32 2>/dev/null
truncate -s 1T endless # nothing but a hole: whatever ends this transfer, it is not its end
t "a file arrives as it was" on_wire copies small
t "a file arrives over a wire with 5 ms delay" on_wire slow
t "a file arrives over a wire that loses 1 % of the frames" on_wire lossy
t "a file arrives although the wire is cut for a while" on_wire cut_and_healed
t "the sender learns that the receiver was killed" on_wire receiver_killed
t "the receiver learns that the sender was killed" on_wire sender_killed
t "the sender learns that its device is gone" on_wire device_removed
cd / && rm -rf "$work"
finish
