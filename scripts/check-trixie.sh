#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# check-trixie.sh ARCHIVE BUILD DIR: in a system of Debian 13, which has libfabric 2.1 and is made by mmdebstrap from this
# machine's mirror, builds the packages from an archive of `make dist`, runs the tests, and copies files by fi_stream_cp
# between that system and BUILD, a build for this machine, in both directions. Logs go to DIR. Exit status 77 where this
# machine cannot do that.
set -u
suite=trixie
here=$(cd "$(dirname "$0")" && pwd)
passed=0 failed=0

skip() {
    echo "SKIP: $1"
    echo "0 passed, 0 failed, 1 skipped"
    exit 77
}
verdict() { # STATUS NAME LOG
    if [ "$1" -eq 0 ]; then
        passed=$((passed + 1))
        echo "ok - $2 ($(($(date +%s) - began)) s)"
    else
        failed=$((failed + 1))
        echo "not ok - $2"
        tail -20 "$3" | sed 's/^/    | /'
    fi
    began=$(date +%s)
}

# copy: what the two ends are is in $server, $client, and the folder that the server sees as /tmp in $seen.
# The server announces its port in a file; the copy is compared with the original.
copy() {
    rm -f "$seen/port" "$seen/copy"
    # shellcheck disable=SC2086
    $server -s 127.0.0.1 -P 0 --port-file "$served/port" -f "$served/copy" -t 60 &
    receiver=$!
    limit=$(($(date +%s) + 60))
    until [ -s "$seen/port" ]; do
        if [ "$(date +%s)" -ge "$limit" ] || ! kill -0 "$receiver" 2>/dev/null; then
            echo "the receiver did not start"
            kill "$receiver" 2>/dev/null
            return 1
        fi
        sleep 0.05
    done
    # shellcheck disable=SC2086
    $client -P "$(cat "$seen/port")" -f "$given/original" -t 60 127.0.0.1 && wait "$receiver" &&
        cmp "$root/tmp/original" "$seen/copy"
}

# inside ROOT: what mmdebstrap calls once its system is made.
inside() {
    root=$1
    began=$(date +%s)
    mkdir -p "$root/build/source" && tar -C "$root/build/source" --strip-components=1 -xf "$ARCHIVE" || return 1
    # A new system knows no name for its own addresses.
    [ -s "$root/etc/hosts" ] || printf '127.0.0.1 localhost\n::1 localhost\n' >"$root/etc/hosts"
    printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d" && chmod 755 "$root/usr/sbin/policy-rc.d"
    chroot "$root" sh -c 'export DEBIAN_FRONTEND=noninteractive && apt-get -q update &&
        apt-get -q install -y --no-install-recommends libfabric-bin procps python3 redis-server redis-tools &&
        apt-get -q build-dep -y --no-install-recommends /build/source' >"$LOGS/install.log" 2>&1
    verdict $? "what the build needs is installed" "$LOGS/install.log"
    version=$(chroot "$root" pkg-config --modversion libfabric)
    # shellcheck disable=SC2016
    chroot "$root" sh -c 'cd /build/source && export DEB_BUILD_OPTIONS="noautodbgsym parallel=$(nproc)" &&
        dpkg-buildpackage -us -uc -b' >"$LOGS/build.log" 2>&1
    verdict $? "dpkg-buildpackage with libfabric $version" "$LOGS/build.log"
    # Programs that are not installed there are skipped by their tests. Python's warning is in rspreload-ofi(7), BUGS.
    # shellcheck disable=SC2016
    chroot "$root" sh -c 'cd /build/source && unset CI &&
        PYTHONWARNINGS="ignore:This process:DeprecationWarning" make -k -j"$(nproc)" check' >"$LOGS/check.log" 2>&1
    verdict $? "make check" "$LOGS/check.log"
    # What failed, with its output: the system goes when this script ends.
    cp "$root/build/source/test-suite.log" "$LOGS/tests.log" 2>/dev/null || :
    grep -E '^# (TOTAL|PASS|SKIP|FAIL|ERROR): ' "$LOGS/check.log" | sed 's/^# /      /'
    grep -E '^(FAIL|ERROR|XPASS): ' "$LOGS/check.log"

    own=$(pkg-config --modversion libfabric)
    head -c 67108864 /dev/urandom >"$root/tmp/original"
    ours="env FI_PROVIDER=rstream FI_PROVIDER_PATH=$BUILD/.libs $BUILD/fi_stream_cp"
    theirs="chroot $root env FI_PROVIDER=rstream FI_PROVIDER_PATH=/build/source/.libs /build/source/fi_stream_cp"
    server=$theirs client=$ours seen=$root/tmp served=/tmp given=$root/tmp
    copy >"$LOGS/copy.log" 2>&1
    verdict $? "64 MiB from libfabric $own to $version" "$LOGS/copy.log"
    server=$ours client=$theirs served=$root/tmp given=/tmp
    copy >"$LOGS/copy.log" 2>&1
    verdict $? "64 MiB from libfabric $version to $own" "$LOGS/copy.log"

    echo "$passed passed, $failed failed, 0 skipped"
    [ $failed -eq 0 ]
}

if [ "${1:-}" = --inside ]; then
    inside "$2"
    exit
fi

[ $# -eq 3 ] || { echo "usage: ${0##*/} ARCHIVE BUILD DIR" >&2; exit 1; }
ARCHIVE=$(realpath "$1") BUILD=$(realpath "$2")
mkdir -p "$3" && LOGS=$(cd "$3" && pwd) || exit 1
export ARCHIVE BUILD LOGS
command -v mmdebstrap >/dev/null 2>&1 || skip "mmdebstrap is missing: scripts/install-deps.sh --packages"
[ "$(id -u)" -eq 0 ] || unshare --user --map-auto true 2>/dev/null ||
    skip "this user is not root, and cannot make user namespaces (subuid(5))"
[ -x "$BUILD/fi_stream_cp" ] || { echo "$BUILD holds no build: ./quickstart build" >&2; exit 1; }
sources=$("$here/debian-sources.sh" $suite 2>&1) || skip "${sources#SKIP: }"
echo "$sources" | mmdebstrap --quiet --variant=apt --format=null --skip=cleanup/apt --include=ca-certificates \
    --customize-hook="'$here/check-trixie.sh' --inside \"\$1\"" $suite /dev/null -
