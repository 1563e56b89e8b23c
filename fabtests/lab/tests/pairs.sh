# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
# shellcheck shell=sh
# on: rxe siw tcp
# limit: 400
# long: the functional tests and programs.sh do the same on devices every day, in fewer processes
#
# fabtests' runner, in pairs of processes; what its table says, as TAP.
table=$(mktemp)
"$LAB/../scripts/runfabtests.sh" -p "$FABTESTS_CORE;rstream" -B "$LAB_BUILD" -t few -T 60 "$FABTESTS_NODE" "$LAB_CLIENT" |
    sed -u 's/^\(.*[^ ]\)  *pass  *[0-9]*s$/ok - \1/; t
        s/^\(.*[^ ]\)  *fail  *[0-9]*s$/not ok - \1/; t
        s/^\(.*[^ ]\)  *skip  *[0-9]*s$/ok - \1 # SKIP/; t
        s/^/#/' | tee "$table"
echo "1..$(grep -Ec '^(not )?ok ' "$table")"
rm -f "$table"
