# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
# shellcheck shell=sh disable=SC2317
# on: rxe siw
# limit: 36000
# only: if named
#
# Failures of the fabric at random moments, while verified traffic goes both ways between two programs on the fabric path
# (preload/test/torture_parts/main.cpp). Nothing may be lost, doubled or hung. Prints how long the longest pause of a
# connection was.
#
#     fabtests/lab/check -B _build/quick -d rxe -t 36000 campaign
#
# In the environment: FABTESTS_CAMPAIGN_RUNS of each kind (100), FABTESTS_CAMPAIGN_KINDS (all, see the end), FABTESTS_CAMPAIGN_SEED (the time).
set -u
# shellcheck source=fabtests/lab/guest/tap.sh
. "$LAB/guest/tap.sh"
runs=${FABTESTS_CAMPAIGN_RUNS:-100}
seed=${FABTESTS_CAMPAIGN_SEED:-$(date +%s)}
# shellcheck source=fabtests/lab/guest/torture.sh
. "$LAB/guest/torture.sh"
echo "# seed $seed, $runs runs of each kind"

# random LOWEST HIGHEST: another whole number each time.
random() {
    seed=$((seed * 1103515245 % 2147483648 + 12345))
    echo $((seed / 65536 % ($2 - $1 + 1) + $1))
}

traffic() { torture test:1:0:fabric "$1" "$2" --rounds 1 --patience 200 >output 2>&1; } # ACTIONS BYTES
is_under_way() { grep -q '^# under way' output; }
pause() { sleep "$(awk "BEGIN { print $1 / 1000 }")"; }

# whole: wires and devices as they were.
whole() {
    wire heal
    for number in 0 1; do
        [ -e "/sys/class/infiniband/$LAB_DEVICE$number" ] || lab-device add "$LAB_DEVICE$number"
    done
}

# disturbed KIND: one run. Its traffic must have been upgraded before, and must last for a while after that began. (A
# device that is removed may be gone only when its last user has noticed.)
disturbed() {
    : >output
    (
        status=0
        traffic drive "$bytes" || status=$?
        milliseconds >ended
        exit $status
    ) &
    traffic=$!
    wait_until 60 is_under_way || { echo "nothing was upgraded"; return 1; }
    pause "$(random 0 1500)"
    begun=$(milliseconds)
    "$1" "$(random 0 1)"
    wait "$traffic" || return 1
    [ $(($(cat ended) - begun)) -ge 1000 ] || { echo "the traffic had ended before that"; return 1; }
    [ "$(count 8)" -gt 0 ]
}

remove() { lab-device remove "$LAB_DEVICE$1"; }
remove_and_add() {
    remove "$1"
    pause "$(random 0 2000)"
    lab-device add "$LAB_DEVICE$1"
}
cut() { # SECONDS
    wire cut "$LAB_WIRE"
    sleep "$1"
    wire heal "$LAB_WIRE"
}
cut_1() { cut 1; }
cut_5() { cut 5; }
cut_60() { cut 60; }
kill_a_worker() {
    workers=$(pgrep -x rspreload-fabri)
    # shellcheck disable=SC2086
    set -- "$1" $workers
    [ $# -gt 1 ] && eval "kill -KILL \${$(($1 % ($# - 1) + 2))}"
}
remove_under_loss() {
    wire loss 1
    remove_and_add "$1"
}

# One run each: of connections whose writer is killed, and of those that go on in an executed program.
killed() { traffic drive,kill 4000000 && [ "$(count 8)" -gt 0 ]; }
executed() { traffic drive,exec 4000000 && [ "$(count 8)" -gt 0 ]; }

# A quantile of the numbers of a file, one a line.
quantile() { sort -n "$2" | awk -v q="$1" '{ v[NR] = $1 } END { print NR ? v[int((NR - 1) * q + 1.5)] : "-" }'; }

# kind NAME COMMAND...: all runs of it.
kind() {
    name=$1
    shift
    bad=0
    : >pauses
    run=0
    while [ "$run" -lt "$runs" ]; do
        run=$((run + 1))
        whole
        if "$@" >reason 2>&1; then
            sed -n 's/^# longest pause: \([0-9]*\) ms/\1/p' output >>pauses
        else
            bad=$((bad + 1))
            echo "run $run: $(cat reason) $(count 8) upgrades, $(count 9) returns; $(reasons)"
            grep -v '^# seed' output
        fi
        random 0 1 >/dev/null # in this shell: those of a run are its own
    done
    echo "$name: $runs runs, $bad failed; longest pause of a run, ms: median $(quantile 0.5 pauses), at most" \
        "$(quantile 1 pauses)" >>table
    [ "$bad" -eq 0 ]
}

bytes=200000000 # 8 to 10 s here
for what in ${FABTESTS_CAMPAIGN_KINDS:-remove remove_and_add remove_under_loss cut_1 cut_5 cut_60 kill_a_worker killed executed}; do
    case $what in
    killed | executed) t "$what" kind "$what" "$what" ;;
    *) t "$what" kind "$what" disturbed "$what" ;;
    esac
done
sed 's/^/# /' table
finish
