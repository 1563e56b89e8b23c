#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# build-check.sh BUILD_DIR SOURCE_DIR SANITIZERS [build]: builds with sanitizers in a folder of its own, and runs the tests
# there, or builds them only.
set -eu
build=$1 source=$2 sanitizers=$3 only=${4:-}
mkdir -p "$build"
cd "$build"
# Optimizing what sanitizers add takes half of the compiler's time. The product has limits of time of its own, though, for
# which -O0 with the thread sanitizer is too slow.
case $sanitizers in
thread) product='-g1 -O1' ;;
*) product='-g1 -O0' ;;
esac
tests='-g1 -O0'
# clang compiles this in less time than g++. It is taken if it has the runtime library, and what finds the names of
# functions for reports and suppressions. Not for threads: see configure.ac. CC and CXX choose others.
set --
case $sanitizers,${CC:-}${CXX:-} in
*address*,)
    if [ -x "$(clang++ -print-prog-name=llvm-symbolizer 2>/dev/null)" ] &&
        echo 'int main() {}' | clang++ -x c++ -fsanitize="$sanitizers" -shared-libsan -o conftest - 2>/dev/null; then
        set -- CC=clang CXX=clang++
    fi
    rm -f conftest
    ;;
esac
# -g1, and sh: as in quickstart.
[ -f Makefile ] || CONFIG_SHELL=/bin/sh /bin/sh "$source/configure" "$@" --enable-werror --enable-sanitize="$sanitizers" \
    --enable-precompiled-header CFLAGS="$product" CXXFLAGS="$product" >configure.log 2>&1 || { tail -20 configure.log; exit 1; }
make -s -j"$(nproc)" all librspreload-sanitized.la
# A leak that libfabric or its libraries leave at exit is not ours; what is ours is not in this list.
ASAN_OPTIONS=${ASAN_OPTIONS:-detect_stack_use_after_return=1:strict_string_checks=1}
LSAN_OPTIONS=${LSAN_OPTIONS:-suppressions=$source/scripts/lsan.supp:print_suppressions=0}
TSAN_OPTIONS=${TSAN_OPTIONS:-suppressions=$source/scripts/tsan.supp:second_deadlock_stack=1}
export ASAN_OPTIONS LSAN_OPTIONS TSAN_OPTIONS
# Sanitizers slow a program down by a factor of up to ten: limits of time are for calls that never return.
FABTESTS_PATIENCE=${FABTESTS_PATIENCE:-4}
export FABTESTS_PATIENCE
suffix=
[ "$product" = "$tests" ] || suffix=-of-tests
[ "$only" != build ] || set -- TESTS=
[ "$only" = build ] || set --
# Most tests wait more than they compute.
exec make -s -j$(($(nproc) + 1)) check CFLAGS="$tests" CXXFLAGS="$tests" precompiled_suffix="$suffix" "$@"
