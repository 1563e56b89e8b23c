# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
# shellcheck shell=sh
# on: rxe
# if named, also on: siw
# limit: 1500
#
# Real programs, unchanged, on the fabric path over RoCE and iWARP: those of fabtests/programs that are marked for the lab.
# Their behaviour on kernel TCP is tested outside; emulation is slow.
command -v python3 >/dev/null 2>&1 || { echo "1..0 # SKIP there is no python3"; exit 77; }
results=$LAB_RESULTS/programs.$LAB_DEVICE.json
rm -f "$results"
unset FI_PROVIDER
# Some of each kind; all of them if FABTESTS_LONG=1 (check-long).
set -- "iperf3: one stream" redis
[ "${FABTESTS_LONG:-0}" = 0 ] || set --
python3 "$LAB/../programs/run" -B "$LAB_BUILD" --lab --no-plain --core verbs --address "$FABTESTS_NODE" \
    --results "$results" "$@" || exit
# It would be easy to be right if nothing were upgraded.
grep -q '"upgraded": [1-9]' "$results" || { echo "Bail out! no connection was upgraded"; exit 1; }
