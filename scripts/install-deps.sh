#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# install-deps.sh [--demo] [--check] [--lab] [--programs] [--packages]: installs what is missing to build and run, on Debian and Ubuntu;
# also what the demonstration needs, the checks, the verbs lab, the tests with real programs, or the packages. Asks for root by sudo only if something is missing.
set -eu

packages="g++ make autoconf automake libtool pkg-config libfabric-dev libfabric-bin zlib1g-dev libcmocka-dev pandoc git"
packages="$packages libfmt-dev nlohmann-json3-dev systemtap-sdt-dev librdmacm-dev libibverbs-dev rdmacm-utils"
for option; do
    case $option in
    --demo)
        packages="$packages python3 redis-server redis-tools"
        ;;
    --check)
        packages="$packages clang clang-format clang-tidy libclang-rt-14-dev llvm valgrind xz-utils binutils"
        ;;
    --lab)
        # The emulator and what makes an initramfs; what speaks to RDMA devices; libelf1 and xz-utils, to build siw.
        packages="$packages qemu-system-x86 busybox-static cpio kmod xz-utils libelf1"
        packages="$packages iproute2 rdma-core ibverbs-providers ibverbs-utils perftest"
        ;;
    --programs)
        # What fabtests/programs runs unchanged. None of the services among them is started now (policy-rc.d below), but
        # Debian will start some at the next boot: packages without a service are taken where there are such.
        packages="$packages apache2-bin apache2-utils curl git gunicorn haproxy iperf3 lighttpd mariadb-client-core"
        packages="$packages mariadb-server-core memcached netcat-openbsd nginx nodejs openssh-client openssh-server"
        packages="$packages openssl perl postgresql python3 redis-server redis-tools rsync socat util-linux vsftpd wget"
        packages="$packages libnbd-bin libopenmpi-dev nbdkit openmpi-bin qemu-utils"
        ;;
    --packages)
        # What builds and judges packages, and what makes a clean system to install them in.
        packages="$packages build-essential debhelper dpkg-dev fakeroot lintian mmdebstrap rpm rpmlint uidmap"
        ;;
    *)
        echo "${0##*/}: unknown option $option (--demo, --check, --lab, --programs, --packages)" >&2
        exit 1
        ;;
    esac
done

if ! command -v apt-get >/dev/null 2>&1; then
    echo "This script knows Debian and Ubuntu only. Install the counterparts of these packages, then go on:" >&2
    echo "  $packages" >&2
    exit 1
fi

missing=
for package in $packages; do
    case $(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || :) in
    *' installed') ;;
    *) missing="$missing $package" ;;
    esac
done
[ -n "$missing" ] || exit 0

as_root=
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null 2>&1; then
        echo "These packages are missing, and neither are you root nor is there sudo:$missing" >&2
        exit 1
    fi
    as_root=sudo
fi
echo "installing:$missing"
log=$(mktemp)
export DEBIAN_FRONTEND=noninteractive
# Services of packages are not started, unless the machine has a policy of its own.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap '$as_root rm -f "$policy"' EXIT
    trap 'exit 130' INT TERM
    printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" >/dev/null
    $as_root chmod 755 "$policy"
fi
apt="$as_root apt-get -o DPkg::Lock::Timeout=300"
# shellcheck disable=SC2086
if ! { $apt update && $apt install -y --no-install-recommends $missing; } >"$log" 2>&1; then
    tail -20 "$log" >&2
    echo "Installing failed; the whole log is in $log" >&2
    exit 1
fi
rm -f "$log"
