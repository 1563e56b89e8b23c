#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# closed_recovery_test.cpp over the fabric path on one host: librsocket-ofi over the tcp core, in workers.
. "${srcdir:?}/preload/test/preload.sh"
if [ -n "$sanitizer" ]; then
    echo "1..0 # SKIP sanitizers do not survive that a process with threads forks"
    exit 0
fi
export FI_PROVIDER_PATH="$builddir/.libs" FI_RSTREAM_CORE=tcp
export LD_LIBRARY_PATH="$builddir/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export FABRIC_WORKERS="$scratch/workers" FABRIC_WORKER_OF_SERVER="$builddir/.libs/rspreload-fabric"
cat >"$scratch/worker" <<END
#!/bin/sh
echo \$\$ >>"$scratch/workers"
exec "$builddir/.libs/rspreload-fabric"
END
chmod +x "$scratch/worker"
# shellcheck disable=SC2086
env $preload RSPRELOAD_UPGRADE=test:1:0:fabric RSPRELOAD_FABRIC_WORKER="$scratch/worker" \
    RSPRELOAD_EXPLAIN="$scratch/records" "$builddir/preload/test/closed_recovery_test" "$@"
result=$?
# What became of each connection, in case one was not upgraded.
sed 's/^/# /' "$scratch/records"
exit $result
