# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
# shellcheck shell=sh disable=SC2034,SC2154
#
# What comparisons share: a pair of programs is run and its client's line of JSON kept; medians, ratios, verdicts. The
# caller sets $address, where servers listen, and $bin, the folder of the programs with a slash, or empty.

work=$(mktemp -d)
server=
cleanup() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || :
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 1' INT TERM
: >"$work/all"
missed=0

# failed WORDS...: why a measurement is none, with what its programs said.
failed() {
    cat "$work/client.err" "$work/server.err" >&2 2>/dev/null || :
    echo "${0##*/}: $*" >&2
    [ -z "$server" ] || kill "$server" 2>/dev/null || :
    [ -z "$server" ] || wait "$server" 2>/dev/null || :
    server=
    return 1
}

# await SECONDS COMMAND...: until it succeeds, or the server is gone, or the time is over.
await() {
    tries=$(($1 * 50))
    shift
    until "$@"; do
        tries=$((tries - 1))
        kill -0 "$server" 2>/dev/null && [ $tries -gt 0 ] || return 1
        sleep 0.02
    done
}

# measure PROGRAM ARGUMENTS...: one run of a pair of ours; the client's line of JSON goes to $work/result.
measure() {
    program=$1
    shift
    rm -f "$work/port" "$work/client.err"
    "$bin$program" -s "$address" -P 0 --port-file "$work/port" --json "$@" >/dev/null 2>"$work/server.err" &
    server=$!
    # The server writes the file once it listens; nothing else tells.
    await 20 test -s "$work/port" || { failed "$program $* did not start"; return 1; }
    "$bin$program" -P "$(cat "$work/port")" --json "$@" "$address" >"$work/result" 2>"$work/client.err" ||
        { failed "$program $* failed"; return 1; }
    wait "$server" || { failed "the server of $program $* failed"; return 1; }
    server=
}

# keep CASE PROVIDER: what was measured, as one of them.
keep() { sed "s/^/$1 $2 /" "$work/result" >>"$work/all"; }

# take CASE PROVIDER PROGRAM ARGUMENTS...
take() {
    taken_case=$1 taken_provider=$2
    shift 2
    measure "$@" || return 1
    keep "$taken_case" "$taken_provider"
}

# values CASE PROVIDER FIELD: one a line, sorted.
values() {
    awk -v want="$1 $2 " -v field="\"$3\":" '
        index($0, want) == 1 {
            at = index($0, field)
            if (at) { rest = substr($0, at + length(field)); sub(/[,}].*/, "", rest); print rest + 0 }
        }' "$work/all" | sort -n
}

# median CASE PROVIDER FIELD, and the least and the greatest: 0 if there is none.
median() {
    values "$@" | awk '{ v[NR] = $1 }
        END { print NR ? (NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2) : 0 }'
}
least() { values "$@" | awk 'NR == 1 { least = $1 } END { print least + 0 }'; }
greatest() { values "$@" | awk '{ greatest = $1 } END { print greatest + 0 }'; }

# compare_row TEXT OURS THEIRS WHOSE [RELATION TARGET]
compare_row() {
    ratio=$(awk -v a="$2" -v b="$3" 'BEGIN { if (a > 0 && b > 0) printf "%.2f", a / b; else print "-" }')
    met=
    if [ $# -gt 4 ]; then
        met=NO
        if [ "$ratio" != - ] && awk -v r="$ratio" -v t="$6" "BEGIN { exit !(r $5 t) }"; then
            met=yes
        else
            missed=$((missed + 1))
        fi
    fi
    printf '%-34s %10s %10s %-11s %6s  %s %-5s %s\n' "$1" "$2" "$3" "$4" "$ratio" "${5:-}" "${6:-}" "$met" | sed 's/ *$//'
}
