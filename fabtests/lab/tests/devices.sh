# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
# shellcheck shell=sh
# on: guest
# limit: 120
#
# Devices of both kinds in one process.
for device in rxe0 siw0; do
    [ -e "/sys/class/infiniband/$device" ] || { echo "this guest has no $device"; exit 77; }
done
export FABTESTS_ROCE=10.77.1.1 FABTESTS_IWARP=10.77.2.1
exec "$LAB_BUILD/fabtests/lab/devices_test"
