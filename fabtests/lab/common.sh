# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
# shellcheck shell=sh disable=SC2154
#
# What the lab's commands on the host share: where its things are, and how the guest is booted. The caller sets $lab, the
# folder of this file.

cache=${RSTREAM_LAB_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/rstream-lab}

note() { echo "lab: $*" >&2; }

die() {
    note "$*"
    exit 1
}

# unavailable REASON: the lab cannot be had on this machine. That is a skip for a person, and a failure for CI.
unavailable() {
    note "$*"
    if [ -n "${CI:-}" ]; then
        note "CI is set: that is a failure"
        [ -z "${count_unavailable:-}" ] || echo "0 passed, 1 failed, 0 skipped"
        exit 1
    fi
    [ -z "${count_unavailable:-}" ] || echo "0 passed, 0 failed, 1 skipped"
    exit 77
}

# $limit is a number of seconds.
check_limit() {
    case $limit in
    '' | *[!0-9]* | 0*) die "-t $limit: not a number of seconds" ;;
    esac
}

need_commands() {
    [ "$(uname -sm)" = "Linux x86_64" ] ||
        unavailable "the verbs lab knows x86-64 Linux only; this is $(uname -sm). On a Linux with rxe or siw, try util/rstream-lab-setup"
    for tool in qemu-system-x86_64 busybox cpio modprobe rdma flock; do
        # modprobe and rdma are where only root looks.
        PATH=$PATH:/usr/sbin:/sbin command -v "$tool" >/dev/null 2>&1 ||
            unavailable "the command $tool is missing: scripts/install-deps.sh --lab installs what the lab needs"
    done
}

# quote WORD: as a word of a shell script, whatever it holds.
quote() {
    quoted=$(printf '%sx' "$1" | sed "s/'/'\\\\''/g")
    printf "'%s'" "${quoted%x}"
}

# export_line NAME: exports what the variable holds here.
export_line() {
    eval "[ -n \"\${$1+set}\" ]" || return 0
    printf 'export %s=' "$1"
    eval "quote \"\$$1\"" && echo
}

# make_share: the folder that host and guest both write. Removed at exit.
make_share() {
    share=$(mktemp -d "${TMPDIR:-/tmp}/rstream-lab.XXXXXX")
    trap 'rm -rf "$share"' EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    : >"$share/output"
}

# write_session MODE: what the guest's process 1 reads; $results is a folder that the guest may write, or empty.
write_session() {
    kernel=$(cat "$cache/kernel")
    {
        echo "mode=$1"
        printf 'lab=' && quote "$lab" && echo
        printf 'modules=' && quote "$cache/$kernel/lib/modules/$kernel" && echo
        printf 'results=' && quote "${results:-}" && echo
        # shellcheck disable=SC2016
        echo '. "$lab/guest/session.sh"'
    } >"$share/session"
}

# Variables that programs under test read: what a name must begin or end with.
passed_on='FI_[A-Za-z0-9_]*|FABTESTS_[A-Za-z0-9_]*|RSTREAM_[A-Za-z0-9_]*|RSOCKETS?_[A-Za-z0-9_]*|RS_[A-Za-z0-9_]*'
passed_on="$passed_on|RDMAV_[A-Za-z0-9_]*|CMOCKA_[A-Za-z0-9_]*|[A-Z]+SAN_OPTIONS|TERM"

# write_command WORDS...: what the guest runs: with the folder, the PATH and the variables of here, and those that
# $share/more sets.
write_command() {
    {
        printf 'cd ' && quote "$PWD" && echo ' || exit 125'
        printf 'PATH=' && quote "$lab/guest/bin:$PATH:/usr/sbin:/sbin:${lab%/*/*}/util" && echo
        export_line HOME
        env | sed -En "s/^($passed_on)=.*/\\1/p" | sort -u | while read -r name; do
            export_line "$name"
        done
        [ ! -e "$share/more" ] || cat "$share/more"
        printf 'exec'
        for word; do
            printf ' ' && quote "$word"
        done
        echo
    } >"$share/command"
}

# boot SECONDS ARGUMENTS...: becomes QEMU on what is in the cache, with further arguments: call it in a subshell. The exit
# status is that of QEMU, or 124 when the time is over. The guest's console goes to $share/console.
boot() {
    seconds=$1
    shift
    [ -z "${results:-}" ] ||
        set -- "$@" -virtfs "local,path=$results,mount_tag=results,security_model=none,multidevs=remap"
    # The guest's clock is the host's counter; its frequency is not the guest's to find out (tsc_khz.cpp).
    khz=$("$cache/tsc-khz" 2>/dev/null || :)
    # The exit device ends QEMU with 2 * value + 1. A guest that panics reboots, which -no-reboot turns into an end.
    # All of the host's files are there to be read, and the share to be written; no network, no disk.
    exec timeout --foreground -k 5 "$seconds" qemu-system-x86_64 \
        -machine pc -accel "${RSTREAM_LAB_ACCEL:-tcg,thread=multi}" -cpu "${RSTREAM_LAB_CPU:-max,-erms}" \
        -smp "${RSTREAM_LAB_CPUS:-2}" -m "${RSTREAM_LAB_MEMORY:-3072}" \
        -nodefaults -display none -no-reboot \
        -kernel "$cache/$kernel/vmlinuz" -initrd "$cache/$kernel/initramfs" \
        -append "console=ttyS0 quiet loglevel=5 panic=-1 oops=panic mitigations=off random.trust_cpu=on no_timer_check tsc=reliable ${khz:+tsc_early_khz=$khz} ${RSTREAM_LAB_APPEND:-}" \
        -device isa-debug-exit,iobase=0xf4,iosize=1 \
        -chardev file,id=console,path="$share/console" -serial chardev:console \
        -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
        -virtfs local,path="$share",mount_tag=share,security_model=none,multidevs=remap \
        "$@"
}

# follow SECONDS: boots, and copies the guest's output to stdout as it comes; returns the command's exit status.
follow() {
    seconds=$1
    boot "$seconds" >"$share/qemu" 2>&1 </dev/null &
    qemu=$!
    tail -n +1 -f -s 0.1 --pid=$qemu "$share/output" &
    tail=$!
    trap 'kill $qemu 2>/dev/null || :; wait; rm -rf "$share"' EXIT
    qemu_status=0
    wait $qemu || qemu_status=$?
    wait $tail
    trap 'rm -rf "$share"' EXIT
    ended $qemu_status
}

# ended QEMU_STATUS: the command's exit status, if both ways in which the guest tells it agree; if not, says what happened,
# shows the console's end, and gives 125.
ended() {
    if [ -s "$share/rc" ]; then
        rc=$(cat "$share/rc")
        if [ "$1" -eq $((rc * 2 % 256 + 1)) ]; then
            return "$rc"
        fi
        note "the guest said $rc, but QEMU ended with $1"
    elif [ "$1" -eq 124 ] || [ "$1" -eq 137 ]; then
        note "the guest was ended after ${seconds} s, its time limit"
    elif grep -q 'Kernel panic' "$share/console" 2>/dev/null; then
        note "the guest's kernel panicked"
    else
        note "QEMU ended with $1 before the command did"
    fi
    [ ! -s "$share/qemu" ] || sed 's/^/qemu: /' "$share/qemu" >&2
    if [ -s "$share/console" ]; then
        note "the end of its console:"
        tail -n 40 "$share/console" | sed 's/^/console: /' >&2
    fi
    return 125
}
