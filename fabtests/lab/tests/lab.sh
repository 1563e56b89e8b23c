# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
# shellcheck shell=sh
# on: guest
# limit: 180
# long: it changes when the lab does
#
# The lab itself: what is tested below would prove little if the wires and devices did not do as they are told.
exec sh "$LAB/selftest"
