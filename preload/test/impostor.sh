#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# impostor.cpp claims the connections of torture (torture_parts/main.cpp) on the fabric path, over the tcp core: it gets
# no byte of theirs, and they lose none. fabtests/lab/tests/fabric.sh has the same on devices.
. "${srcdir:?}/preload/test/preload.sh"
export FI_PROVIDER_PATH="$builddir/.libs" FI_RSTREAM_CORE=tcp
export LD_LIBRARY_PATH="$builddir/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export RSPRELOAD_FABRIC_WORKER="$builddir/.libs/rspreload-fabric"
impostor=$builddir/preload/test/impostor
# An address that no other test's connections have.
address=127.0.$(($$ / 250 % 250 + 2)).$(($$ % 250 + 2))

# Again with four times as many bytes where all had been moved before a worker began.
for bytes in 20000000 80000000 320000000; do
    "$impostor" "$address" >"$scratch/impostor" 2>&1 &
    claims=$!
    # shellcheck disable=SC2086
    env $preload RSPRELOAD_UPGRADE=test:1:0:fabric RSPRELOAD_EXPLAIN="$scratch/records" "$builddir/preload/test/torture" \
        --listen "$address" --bytes $bytes --rounds 1 --warm-up 4000 --actions drive >"$scratch/output" 2>&1
    moved=$?
    kill $claims
    wait $claims
    claimed=$?
    if [ $moved -ne 0 ] || ! grep -q ' 0 hellos' "$scratch/impostor"; then
        break
    fi
done

failed=0
say() { # RESULT NUMBER TEXT FILE
    if [ "$1" -eq 0 ]; then
        echo "ok $2 - $3"
    else
        failed=1
        echo "not ok $2 - $3"
    fi
    sed 's/^#* */# /' "$scratch/$4" | head -100
}
echo "1..2"
say $moved 1 "connections lose nothing to an impostor" output
nothing="an impostor gets nothing"
! grep -q ' 0 hellos' "$scratch/impostor" || nothing="$nothing # SKIP the far ends' workers were always faster"
say $claimed 2 "$nothing" impostor
exit $failed
