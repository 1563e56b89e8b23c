# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
# shellcheck shell=dash disable=SC2154
#
# The guest's process 1, on its final root. The host's /run/lab/session sets $lab, $modules, $results and $mode, and reads this file;
# /run/lab/command is what to run. The end is told twice: by a file, and by the exit device.

PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
HOME=/root
export PATH HOME

ip link set lo up
hostname lab 2>/dev/null || echo lab >/proc/sys/kernel/hostname
# Programs pin memory and open files by the thousand.
ulimit -n 65536
ulimit -l unlimited
ulimit -c 0
ulimit -s 8192
if [ -n "$results" ]; then
    mount -t 9p -o trans=virtio,version=9p2000.L,cache=none,msize=262144 results "$results"
    export LAB_RESULTS="$results"
fi
# Each program that is linked with libfabric begins by reading all of the kernel's symbols and by loading each driver of
# libibverbs: under emulation most of a second, of which nothing is for these devices. `umount /proc/kallsyms` brings the
# former back.
mount --bind /dev/null /proc/kallsyms
for driver in /etc/libibverbs.d/*.driver; do
    case ${driver##*/} in
    rxe.driver | siw.driver) ;;
    *) rm -f "$driver" ;;
    esac
done
# modprobe finds the other modules of this kernel in the host's cache.
mkdir -p /lib/modules
ln -sfn "$modules" "/lib/modules/$(uname -r)"
"$lab/../../util/rstream-lab-setup" up >/dev/console 2>&1 || echo "lab: the devices are not complete" >/dev/console

finish() { # STATUS
    sync
    echo "$1" >/run/lab/rc
    # Exit device: 2 * value + 1 is QEMU's status.
    # shellcheck disable=SC2059
    printf "\\$(printf %o $(($1 % 128)))" | dd of=/dev/port bs=1 seek=244 2>/dev/null
    echo "lab: the exit device did not answer" >/dev/console
    sleep 60
}

if [ "$mode" = shell ]; then
    setsid -c sh /run/lab/command </dev/hvc0 >/dev/hvc0 2>&1
    finish $?
fi

# Through a pipe, since a program that opens /dev/stderr anew would cut a file short.
mkfifo /run/output
cat </run/output >>/run/lab/output &
cat=$!
setsid sh /run/lab/command </dev/null >/run/output 2>&1
status=$?
# What the command left running may hold the pipe: its output ends here.
timeout 2 tail --pid=$cat -f /dev/null
finish "$status"
