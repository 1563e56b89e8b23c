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

# check_choices PROGRAM...: $rounds is a number, and $bin, or PATH, has these programs.
check_choices() {
    case $rounds in
    '' | *[!0-9]* | 0*) echo "${0##*/}: -n $rounds: not a number of rounds" >&2; exit 1 ;;
    esac
    for needed; do
        command -v "$bin$needed" >/dev/null 2>&1 && continue
        echo "${0##*/}: there is no $needed in ${bin:-PATH}: name the build tree by -B" >&2
        exit 1
    done
    # The plugin of that build, unless another one is named.
    if [ -n "$bin" ] && [ -z "${FI_PROVIDER_PATH:-}" ] && [ -e "${bin}.libs/librstream-fi.so" ]; then
        export FI_PROVIDER_PATH="${bin}.libs"
    fi
}

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

# values CASE PROVIDER FIELD: one a line, in the order of the rounds.
values() {
    awk -v want="$1 $2 " -v field="\"$3\":" '
        index($0, want) == 1 {
            at = index($0, field)
            if (at) { rest = substr($0, at + length(field)); sub(/[,}].*/, "", rest); print rest + 0 }
        }' "$work/all"
}

middle() {
    sort -g | awk '{ v[NR] = $1 } END { print NR ? (NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2) : 0 }'
}

# median CASE PROVIDER FIELD, and the least and the greatest: 0 if there is none.
median() { values "$@" | middle; }
least() { values "$@" | sort -g | awk 'NR == 1 { least = $1 } END { print least + 0 }'; }
greatest() { values "$@" | sort -g | awk '{ greatest = $1 } END { print greatest + 0 }'; }

# paired OPERATOR CASE PROVIDER FIELD OTHER [OTHER_FIELD [FACTOR]]: the median of what the rounds give, ours times FACTOR /
# or - the other's of the same round. The machine may be quick in one round and slow in the next: the two of a round
# were measured one after the other.
paired() {
    values "$2" "$3" "$4" >"$work/ours"
    values "$2" "$5" "${6:-$4}" >"$work/others"
    paste "$work/ours" "$work/others" | awk -v operator="$1" -v factor="${7:-1}" '
        NF == 2 && (operator == "-" || $2 > 0) { print operator == "-" ? $1 * factor - $2 : $1 * factor / $2 }' | middle
}

# compare_row TEXT OURS THEIRS WHOSE RATIO [RELATION TARGET]
compare_row() {
    met=
    if [ $# -gt 5 ]; then
        met=NO
        if awk -v r="$5" -v t="$7" "BEGIN { exit !(r > 0 && r $6 t) }"; then
            met=yes
        else
            missed=$((missed + 1))
        fi
    fi
    printf '%-34s %10s %10s %-11s %6.2f  %s %-5s %s\n' "$1" "$2" "$3" "$4" "$5" "${6:-}" "${7:-}" "$met" | sed 's/ *$//'
}
