# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
# shellcheck shell=sh
# on: rxe siw tcp
# limit: 180
#
# A wire that is cut, and what sockets tell of it. The kernel's TCP crosses the wire of RoCE.
if [ "$LAB_DEVICE" = tcp ]; then
    export FABTESTS_NODE=10.77.1.1 FABTESTS_CLIENT=10.77.1.2 FABTESTS_WIRE=roce
else
    export FABTESTS_CLIENT="$LAB_CLIENT" FABTESTS_WIRE="$LAB_WIRE"
fi
export FI_RSTREAM_CORE="$FABTESTS_CORE"
exec "$LAB_BUILD/fabtests/lab/socket_cut_test"
