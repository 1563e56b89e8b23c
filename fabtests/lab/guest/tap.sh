# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
# shellcheck shell=sh
#
# For tests in sh: `t NAME COMMAND...` runs a test and says "ok" or "not ok", with what the command printed below; `finish`
# prints the plan, and exits with 1 if a test failed. `skip NAME REASON` says what is not run.

tap_count=0 tap_failed=0
tap_output=$(mktemp)
trap 'rm -f "$tap_output"' EXIT

t() {
    tap_name=$1
    shift
    tap_count=$((tap_count + 1))
    tap_start=$(milliseconds)
    if ("$@") >"$tap_output" 2>&1; then
        echo "ok $tap_count - $tap_name ($(($(milliseconds) - tap_start)) ms)"
    else
        tap_failed=$((tap_failed + 1))
        echo "not ok $tap_count - $tap_name"
        sed 's/^/# /' "$tap_output"
    fi
}

skip() {
    tap_count=$((tap_count + 1))
    echo "ok $tap_count - $1 # SKIP $2"
}

finish() {
    echo "1..$tap_count"
    [ "$tap_failed" -eq 0 ]
    exit
}

milliseconds() { date +%s%3N; }

# wait_until SECONDS COMMAND...: until it succeeds.
wait_until() {
    tap_end=$(($(milliseconds) + $1 * 1000))
    shift
    until "$@" >/dev/null 2>&1; do
        [ "$(milliseconds)" -lt "$tap_end" ] || return 1
        sleep 0.02
    done
}
