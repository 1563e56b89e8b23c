#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# Functional tests on a core that the table of cores says nothing of: the tcp core behind a plugin whose table has every
# property at its default (plain_core_table.cpp). Left out is what such a core cannot do (keepalive) and what is about
# kernel sockets (descriptors that a program executed inherits, strangers at a listener).
FI_PROVIDER_PATH=${FABTESTS_BIN:?the build directory}/prov/rstream/test/plain/.libs
export FI_PROVIDER_PATH
tests='getinfo cm_connect cm_refuse cm_state eq transfer ending peek trywait growth threads map unmap'
echo "1..$(echo "$tests" | wc -w)"
number=0
for name in $tests; do
    number=$((number + 1))
    if output=$("$FABTESTS_BIN/fabtests/functional/${name}_test" 2>&1) && ! echo "$output" | grep -q '^not ok'; then
        echo "ok $number - $name"
    else
        echo "$output" | sed 's/^/# /'
        echo "not ok $number - $name: $(echo "$output" | grep '^not ok' | head -n 1)"
    fi
done
