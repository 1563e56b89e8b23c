# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
# shellcheck shell=sh disable=SC2317
# on: rxe siw
# limit: 36000
# only: if named
#
# Failures of the fabric at random moments, while verified traffic goes both ways on the fabric path: nothing may be lost,
# doubled or hung.
#
#     fabtests/lab/check -B _build/quick -d rxe -t 36000 campaign
#
# One disturbance befalls several pairs of programs at once, each pair with several connections
# (preload/test/torture_parts/main.cpp). Every connection has data and a position of its own, and is counted as hit if both
# its ends were on the fabric path and had moved bytes within two seconds. After the disturbance, the traffic goes on until
# every end has read 4 KiB more, a second at least, and then to its end. Each kind is repeated until as many
# connections as wanted were hit. Two kinds are done by the pair itself: `kill_a_program` kills one of the two programs, and
# each connection's other end must read all that was written and then the end, or a reset (torture_parts/killed_side.hpp);
# `executed` counts the programs that were executed on a connection of the fabric path.
#
# So that the emulator has time for it, an end rests for up to a second between its turns. The first disturbance after a boot
# is slow, as the guest reads its files then, and may hit few.
#
# A pause is the longest time in which an end of a connection moved no byte, from the disturbance on (of kill_a_program: until
# the other end has read all and the end; of executed: one for each pair of programs, all its connections together). The pause
# before is the longest until then, for comparison: the rests and the emulator alone make such pauses. If anything fails in a
# pair, that counts as one failure, and no connection of that pair as hit.
#
# A cut lasts longer than it should: when many connections repeat at once, rxe lets nothing else run, for tens of seconds.
# The table has how long it was.
#
# In the environment: FABTESTS_CAMPAIGN_RUNS, connections to be hit by each kind (100); FABTESTS_CAMPAIGN_KINDS (all, see the
# end); FABTESTS_CAMPAIGN_PAIRS at once (2) and FABTESTS_CAMPAIGN_CONNECTIONS of each (8), both more for cuts of a minute;
# FABTESTS_CAMPAIGN_SEED (the time).
set -u
# shellcheck source=fabtests/lab/guest/tap.sh
. "$LAB/guest/tap.sh"
runs=${FABTESTS_CAMPAIGN_RUNS:-100}
seed=${FABTESTS_CAMPAIGN_SEED:-$(date +%s)}
# shellcheck source=fabtests/lab/guest/torture.sh
. "$LAB/guest/torture.sh"
exec 3>&1 # also in a test
echo "# seed $seed, at least $runs connections hit by each kind"

# random LOWEST HIGHEST: another whole number each time, in $random.
random() {
    seed=$((seed * 1103515245 % 2147483648 + 12345))
    random=$((seed / 65536 % ($2 - $1 + 1) + $1))
}
pause() { # LOWEST HIGHEST
    random "$1" "$2"
    sleep "$(awk "BEGIN { print $random / 1000 }")"
}

# whole: wires and devices as they were.
whole() {
    wire heal
    [ -z "$removal" ] || wait "$removal"
    removal=
    for number in 0 1; do
        [ -e "/sys/class/infiniband/$LAB_DEVICE$number" ] || lab-device add "$LAB_DEVICE$number"
    done
}

# start_pairs ACTIONS OPTION...: each in a folder of its own, with its output and its records.
start_pairs() {
    actions=$1
    shift
    started=
    rm -rf pair[0-9]*
    pair=0
    while [ "$pair" -lt "$pairs" ]; do
        pair=$((pair + 1))
        random 0 1
        mkdir "pair$pair"
        (
            cd "pair$pair" || exit
            CAMPAIGN_PAIR=$pair torture test:1:0:fabric "$actions" 4000000 --rounds 1 --patience 200 --seed "$seed$pair" \
                --connections "$connections" --pace 1000 --warm-up 15000 "$@" >output 2>&1
        ) &
        started="$started $!"
    done
}

# await_pairs: what came of them, in `good`: a folder a line. Those that failed say so.
await_pairs() {
    : >good
    pair=0
    status=0
    for process in $started; do
        pair=$((pair + 1))
        if wait "$process"; then
            echo "pair$pair" >>good
        else
            status=1
            bad=$((bad + 1))
            cat "pair$pair/records" >records
            echo "disturbance $disturbances, pair $pair: $(count 8) upgrades, $(count 9) returns; $(reasons)"
            grep -v '^# .*hit:' "pair$pair/output"
        fi
    done
    return "$status"
}
are_under_way() { [ "$(cat pair*/output | grep -c '^# under way')" -eq "$pairs" ]; }
have_ended() { # one at least
    for process in $started; do
        kill -0 "$process" 2>/dev/null || return 0
    done
    return 1
}
are_ready() { are_under_way || have_ended; }
signal_pairs() { # NAME
    sed -n 's/^# under way: process //p' pair*/output | while read -r process; do
        kill "-$1" "$process"
    done
}

# disturbed KIND: one disturbance of all pairs.
disturbed() {
    start_pairs drive --disturbed
    until are_ready; do sleep 0.3; done
    milliseconds >stage_under_way
    pause 0 1500
    signal_pairs USR1
    random 0 1
    "$1" "$random"
    signal_pairs USR2
    milliseconds >stage_done
    await_pairs || return 1
    while read -r folder; do
        sed -n 's/^# hit, and .*, longest pause \([0-9]*\) ms, before that \([0-9]*\) ms;.*/\1 \2/p' "$folder/output"
    done <good >now
    cat now >>pauses
    sed 's/.* //' now >>pauses_before
    while read -r folder; do
        returned=$((returned + $(grep -c '^# hit, and returned' "$folder/output")))
    done <good
    new=$(wc -l <now)
}

# In the background, since the kernel may keep a device until the workers have ended, though it has failed at once.
remove() {
    lab-device remove "$LAB_DEVICE$1" &
    removal=$!
    sleep 1
}
remove_and_add() {
    random 0 2000
    {
        lab-device remove "$LAB_DEVICE$1"
        sleep "$(awk "BEGIN { print $random / 1000 }")"
        lab-device add "$LAB_DEVICE$1"
    } &
    removal=$!
    sleep 2
}
cut() { # SECONDS
    cut_begun=$(milliseconds)
    wire cut "$LAB_WIRE"
    sleep "$1"
    wire heal "$LAB_WIRE"
    echo $(($(milliseconds) - cut_begun)) >>cuts
}
cut_1() { cut 1; }
cut_5() { cut 5; }
cut_60() { cut 60; }
# Of RoCE alone, and until the traffic has gone on: by TCP.
cut_rdma() { wire cut-rdma "$LAB_WIRE"; }
# One of each pair.
kill_a_worker() {
    pair=0
    while [ "$pair" -lt "$pairs" ]; do
        pair=$((pair + 1))
        workers=$(pgrep -x rspreload-fabri | sed 's|.*|/proc/&/environ|' | xargs grep -lzx "CAMPAIGN_PAIR=$pair" |
            tr -dc '0-9\n')
        random 0 1
        # shellcheck disable=SC2086
        set -- "$random" $workers
        [ $# -gt 1 ] && eval "kill -KILL \${$(($1 % ($# - 1) + 2))}"
    done
}
remove_under_loss() {
    wire loss 1
    remove_and_add "$1"
}

kill_a_program() {
    start_pairs drive --kill-side
    await_pairs || return 1
    while read -r folder; do
        sed -n 's/^# hit: .* after -*\([0-9]*\) ms$/\1/p' "$folder/output" >>now
        resets=$((resets + $(grep -c '^# hit: .* and a reset after' "$folder/output")))
    done <good
    cat now >>pauses
    new=$(wc -l <now)
}
executed() {
    start_pairs drive,exec
    await_pairs || return 1
    while read -r folder; do
        sed -n 's/^# upgraded then: .* \([0-9]*\) executed programs$/\1/p' "$folder/output" >>now
        sed -n 's/^# longest pause: \([0-9]*\) ms/\1/p' "$folder/output" >>pauses
    done <good
    new=$(awk '{ n += $1 } END { print n + 0 }' now)
}

# A quantile of the numbers that begin the lines of a file.
quantile() { sort -n "$2" | awk -v q="$1" '{ v[NR] = $1 } END { print NR ? v[int((NR - 1) * q + 1.5)] : "-" }'; }

# stages: of the disturbance, with what was noted.
stages() {
    for stage in $(cat stage_under_way stage_done 2>/dev/null) $(milliseconds); do
        printf ' %s' $(((stage - disturbance_begun) / 1000))
    done
}

# kind NAME COMMAND...: until enough connections were hit, or it failed, or hit none, ten times.
kind() {
    name=$1
    shift
    pairs=${FABTESTS_CAMPAIGN_PAIRS:-2} connections=${FABTESTS_CAMPAIGN_CONNECTIONS:-8}
    [ "$name" != cut_60 ] || pairs=$((pairs + 1)) connections=$((connections * 3 / 2))
    removal=
    bad=0 hit=0 returned=0 disturbances=0 resets=0 idle=0
    : >pauses
    : >pauses_before
    : >cuts
    begun=$(milliseconds)
    while [ "$hit" -lt "$runs" ] && [ $((bad + idle)) -lt 10 ]; do
        disturbances=$((disturbances + 1))
        whole
        new=0
        : >now
        disturbance_begun=$(milliseconds)
        rm -f stage_*
        "$@"
        hit=$((hit + new))
        echo "# $name $disturbances: $new hit, $bad failed so far; under way, done and ended after$(stages) s" >&3
        if [ "$new" -eq 0 ]; then
            idle=$((idle + 1))
            cat pair*/records >records
            echo "disturbance $disturbances: no connection was hit; $(count 8) upgrades, $(count 9) returns; $(reasons)"
        fi
    done
    whole
    text="$name: $hit connections hit by $disturbances disturbances of $pairs pairs, $bad pairs failed"
    [ "$name" != kill_a_program ] || text="$text; $resets peers read a reset"
    [ ! -s pauses_before ] || text="$text, $returned connections returned to TCP"
    text="$text; pause, ms: median $(quantile 0.5 pauses), at most $(quantile 1 pauses)"
    [ ! -s pauses_before ] || text="$text (before: $(quantile 0.5 pauses_before), $(quantile 1 pauses_before))"
    [ ! -s cuts ] || text="$text; the wire was cut for $(quantile 0.5 cuts) ms in the median, $(quantile 1 cuts) at most"
    text="$text; $((($(milliseconds) - begun) / 1000)) s"
    echo "$text" >>table
    [ "$bad" -eq 0 ] && [ "$hit" -ge "$runs" ]
}

kinds="remove remove_and_add remove_under_loss cut_1 cut_5 cut_60 kill_a_worker kill_a_program executed"
[ "$LAB_WIRE" != roce ] || kinds="$kinds cut_rdma"
for what in ${FABTESTS_CAMPAIGN_KINDS:-$kinds}; do
    case $what in
    kill_a_program | executed) t "$what" kind "$what" "$what" ;;
    *) t "$what" kind "$what" disturbed "$what" ;;
    esac
    random 0 1 # in this shell: those of a kind are its own
    tail -n 1 table | sed 's/^/# /'
done
finish
