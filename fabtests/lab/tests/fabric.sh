# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
# shellcheck shell=sh disable=SC2317
# on: rxe siw
# limit: 600
# only: if named
#
# The fabric path of the preload library on devices: connections move between kernel TCP and the device and back, in every
# way of waiting and by several processes. campaign.sh has failures of the fabric.
set -u
# shellcheck source=fabtests/lab/guest/tap.sh
. "$LAB/guest/tap.sh"
# shellcheck source=fabtests/lab/guest/torture.sh
. "$LAB/guest/torture.sh"

# moved WAY ACTIONS BYTES: and something has gone by the device.
moved() {
    torture "$@" --rounds 2 --patience 60 || return 1
    echo "$(count 8) upgrades, $(count 9) returns; $(reasons)"
    [ "$(count 8)" -gt 0 ]
}

t "every way of waiting" moved test:1:0:fabric drive 6000000
t "connections that return at random" moved test:1:100:fabric drive 6000000
t "connections that processes share" moved test:1:0:fabric fork,child,share 4000000
t "connections that are passed and executed upon" moved test:1:0:fabric pass,keep,exec 2000000
finish
