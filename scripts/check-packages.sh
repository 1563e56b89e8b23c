#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# check-packages.sh ARCHIVE DIR: builds Debian packages from an archive of `make dist`, in DIR, lets lintian judge them and
# rpmlint the spec, installs them in a clean system made by mmdebstrap, and runs there debian/tests/installed. With RPM=yes,
# builds RPM packages, too. What this machine cannot do is skipped by name; exit status 77 if it can do nothing.
set -u
here=$(cd "$(dirname "$0")" && pwd)
[ $# -eq 2 ] || { echo "usage: ${0##*/} ARCHIVE DIR" >&2; exit 1; }
archive=$(realpath "$1")
mkdir -p "$2" && work=$(cd "$2" && pwd) || exit 1
passed=0 failed=0 skipped=0

verdict() { # STATUS NAME LOG
    case $1 in
    0)
        passed=$((passed + 1))
        echo "ok - $2 ($(($(date +%s) - began)) s)"
        ;;
    *)
        failed=$((failed + 1))
        echo "not ok - $2"
        tail -40 "$3" | sed 's/^/    | /'
        ;;
    esac
}
skip() {
    skipped=$((skipped + 1))
    echo "SKIP: $1"
}
has() {
    for command; do
        command -v "$command" >/dev/null 2>&1 || {
            missing=$command
            return 1
        }
    done
}
try() { # NAME COMMAND...
    name=$1
    shift
    began=$(date +%s)
    "$@" >"$work/log" 2>&1
    status=$?
    verdict $status "$name" "$work/log"
    return $status
}

# What lintian and rpmlint find: nothing is overridden.
judge_debs() { lintian --fail-on error,warning --no-tag-display-limit "$work"/debs/rstream_*.changes; }
# The spec alone: what Debian's rpm builds has its man pages and binaries as no distribution with rpm has them.
judge_rpm() {
    rpmlint -c "$here/../packaging/rpmlint.toml" "$@" >"$work/rpmlint.log" 2>&1
    status=$?
    cat "$work/rpmlint.log"
    [ $status -eq 0 ] && grep -q ' 0 errors, 0 warnings' "$work/rpmlint.log"
}

built=no
if has dpkg-buildpackage dh; then
    rm -rf "$work/debs"
    # The code is tested elsewhere: it is not optimized, knows only lines for the debugger, has a precompiled header, and its
    # tests do not run, which saves half of the time. check-trixie builds as a distribution does.
    if try "dpkg-buildpackage" env DEB_BUILD_OPTIONS="noopt nocheck" DEB_CFLAGS_APPEND=-g1 DEB_CXXFLAGS_APPEND=-g1 \
        RSTREAM_CONFIGURE=--enable-precompiled-header \
        "$here/build-packages.sh" "$archive" "$work/debs"; then
        built=yes
        if has lintian; then try "lintian" judge_debs; else skip "lintian is missing: scripts/install-deps.sh --packages"; fi
    fi
else
    skip "Debian packages: $missing is missing: scripts/install-deps.sh --packages"
fi

if has rpmbuild rpmlint; then
    try "rpmlint: the spec" judge_rpm "$here/../packaging/rstream.spec"
    # What the build needs is installed by dpkg, of which rpm does not know. The code is tested elsewhere, so that it
    # need not be optimized.
    [ "${RPM:-no}" = no ] ||
        try "rpmbuild" rpmbuild -bb --nodeps --define "_topdir $work/rpm" --define "_sourcedir $(dirname "$archive")" \
            --define "_smp_mflags -j$(nproc)" --define "optflags -O0 -g1" --without check "$here/../packaging/rstream.spec"
else
    skip "the RPM package: $missing is missing: scripts/install-deps.sh --packages"
fi

# installed CHROOT: what mmdebstrap calls in its system.
if [ $built = yes ]; then
    sources=$("$here/debian-sources.sh" 2>"$work/log")
    if [ -z "$sources" ]; then
        skip "packages in a clean system: $(sed 's/^SKIP: //' "$work/log")"
    elif ! has mmdebstrap; then
        skip "packages in a clean system: $missing is missing: scripts/install-deps.sh --packages"
    elif [ "$(id -u)" -ne 0 ] && ! unshare --user --map-auto true 2>/dev/null; then
        skip "packages in a clean system: this user is not root, and cannot make user namespaces (subuid(5))"
    else
        began=$(date +%s)
        # The tests are those of the package, so is what they need.
        needs=$(sed -n '/^Depends:/,/^[A-Z].*:/p' "$here/../debian/tests/control" | grep -v '^R' |
            sed 's/^Depends://' | tr -d ' \n' | sed 's/\(libfabric-rstream\|librsocket-ofi-dev\|rsrun\|rstream-tools\),//g')
        # shellcheck disable=SC2016
        echo "$sources" | mmdebstrap --quiet --variant=apt --format=null --include="$needs" \
            --customize-hook='mkdir -p "$1/tmp/packages"' \
            --customize-hook="copy-in $(find "$work/debs" -name '*.deb' | tr '\n' ' ') /tmp/packages" \
            --customize-hook="copy-in $here/../debian/tests/installed $here/../doc/examples /tmp" \
            --customize-hook='chroot "$1" sh -c "apt-get -q install -y --no-install-recommends /tmp/packages/*.deb"' \
            --customize-hook='chroot "$1" env EXAMPLES=/tmp/examples /tmp/installed' \
            "$(echo "$sources" | cut -d' ' -f3)" /dev/null - >"$work/chroot.log" 2>&1
        status=$?
        grep -E '^(ok|not ok|skipped:|    )' "$work/chroot.log" | sed 's/^skipped:/SKIP:/; s/^/    /'
        if [ $status -ne 0 ] && ! grep -q 'tmp/packages' "$work/chroot.log"; then # before it had any package of ours
            skip "packages in a clean system: mmdebstrap makes none here: $(grep '^E:' "$work/chroot.log" | tail -n 1)"
        else
            verdict $status "packages in a clean system" "$work/chroot.log"
        fi
    fi
fi

echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ] || exit 1
[ $passed -gt 0 ] || exit 77
