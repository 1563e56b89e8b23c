#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# A source written for rdma-core's header compiles against ours with what pkg-config says of rsocket-ofi, as C and as C++,
# with all warnings, and runs. The library is installed into a folder of its own for that.
set -u
library=${RSOCKET_LIBRARY:?the library to look at}
source=${srcdir:?}
build=${FABTESTS_BIN:?the build folder}
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/include/rdma" "$work/lib/pkgconfig"
cp "$source/include/rdma/rsocket.h" "$work/include/rdma/"
cp "$library" "$work/lib/librsocket-ofi.so"
ln -s librsocket-ofi.so "$work/lib/$(readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]/\1/p')"
sed "s|^prefix=.*|prefix=$work|; s|^libdir=.*|libdir=$work/lib|; s|^includedir=.*|includedir=$work/include|" \
    "$build/rsockets/rsocket-ofi.pc" >"$work/lib/pkgconfig/rsocket-ofi.pc"
export PKG_CONFIG_PATH="$work/lib/pkgconfig"

number=0 failures=0
t() { # NAME COMMAND...
    name=$1
    number=$((number + 1))
    shift
    if "$@" >"$work/log" 2>&1; then
        echo "ok $number - $name"
    else
        echo "not ok $number - $name"
        sed 's/^/# /' "$work/log"
        failures=$((failures + 1))
    fi
}

# A program without a sanitizer does not run with a library that has one: then it is only compiled.
sanitized=$(nm -D --undefined-only "$library" | grep -cE '__(asan|tsan)_')
# compiles LANGUAGE COMPILER OPTIONS...
compiles() {
    language=$1 compiler=$2
    shift 2
    # shellcheck disable=SC2046,SC2086
    $compiler "$@" -Wall -Wextra -Werror -x "$language" $(pkg-config --cflags rsocket-ofi) -c -o "$work/$language.o" \
        "$source/rsockets/test/header_test.c" || return 1
    [ "$sanitized" -eq 0 ] || return 0
    # shellcheck disable=SC2046,SC2086
    $compiler -o "$work/$language" "$work/$language.o" $(pkg-config --libs rsocket-ofi) &&
        LD_LIBRARY_PATH="$work/lib" "$work/$language"
}

alone() {
    # shellcheck disable=SC2046
    printf '#include <rdma/rsocket.h>\n#include <rdma/rsocket.h>\nint main(void) { return RDMA_ROUTE - 4; }\n' |
        ${CC:-cc} -std=c99 -pedantic -Wall -Wextra -Werror -D_GNU_SOURCE -x c $(pkg-config --cflags rsocket-ofi) -c -o "$work/alone.o" -
}

echo 1..5
t "C as GNU has it" compiles c "${CC:-cc}" -std=gnu99
t "C of 2011" compiles c "${CC:-cc}" -std=gnu11 -O2 -D_FORTIFY_SOURCE=2
t "C++ of 2011" compiles c++ "${CXX:-c++}" -std=c++11
t "C++ of 2020" compiles c++ "${CXX:-c++}" -std=c++20 -O2
t "the header needs no other, and may come twice" alone
[ $failures -eq 0 ]
