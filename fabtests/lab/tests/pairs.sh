# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
# shellcheck shell=sh
# on: rxe siw tcp
# limit: 400
#
# fabtests' runner, in pairs of processes; what its table says, as TAP.
"$LAB/../scripts/runfabtests.sh" -p "$FABTESTS_CORE;rstream" -B "$LAB_BUILD" -t quick -T 30 "$FABTESTS_NODE" "$LAB_CLIENT" |
    awk '
        / +(pass|fail|skip) +[0-9]+s$/ {
            name = $0; sub(/ +(pass|fail|skip) +[0-9]+s$/, "", name)
            print ($(NF - 1) == "fail" ? "not ok " : "ok ") ++n " - " name ($(NF - 1) == "skip" ? " # SKIP" : "")
            fflush()
            next
        }
        { print "#" $0 }
        END { print "1.." n + 0 }'
