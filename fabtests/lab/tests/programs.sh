# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
# shellcheck shell=sh
# on: rxe siw
# limit: 300
#
# Real programs, unchanged, over RoCE and iWARP: those of fabtests/programs that are marked for the lab, with less data.
# Their behaviour on kernel TCP is tested outside; emulation is slow.
command -v python3 >/dev/null 2>&1 || { echo "1..0 # SKIP there is no python3"; exit 77; }
rm -f "$LAB_RESULTS/programs.$LAB_DEVICE.json"
unset FI_PROVIDER
exec python3 "$LAB/../programs/run" -B "$LAB_BUILD" --lab --no-plain --core verbs --address "$FABTESTS_NODE" \
    --results "$LAB_RESULTS/programs.$LAB_DEVICE.json"
