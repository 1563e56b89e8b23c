#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
#
# stage.sh DESTDIR: renames in a staged installation under /usr what other packages have by the same name. rdma-core's
# utilities have rping, ucmatose, rstream and riostream, which become NAME-ofi; libfabric's headers come with fi_rstream(7),
# which goes into section 7rstream. (librdmacm has rdma/rsocket.h: packages configure with
# --includedir=/usr/include/rsocket-ofi.)
set -eu
stage=${1:?the folder of the staged installation}/usr
man=$stage/share/man
find "$stage" -name '*.la' -delete
# Pages refer to each other by these names.
renamed='rping|ucmatose|rstream|riostream'
sed -E -i -e "s/\\\\f\[B\]($renamed)\\\\f\[R\]\(1\)/\\\\f[B]\\1-ofi\\\\f[R](1)/g" \
    -e 's/(\\f\[B\]fi_rstream\\f\[R\])\(7\)/\1(7rstream)/g' "$man"/man?/*.?
for name in $(echo "$renamed" | tr '|' ' '); do
    mv "$stage/bin/$name" "$stage/bin/$name-ofi"
    title=$(echo "$name" | tr '[:lower:]' '[:upper:]')
    # The title, the name, the synopsis and the examples.
    sed -E -e "/^\.TH/s/\"$title\"/\"$title-OFI\"/" -e "s/^$name( -|  +|$)/$name-ofi\1/" \
        -e "s/^\\\\f\[B\]$name\\\\f\[R\]/\\\\f[B]$name-ofi\\\\f[R]/" "$man/man1/$name.1" >"$man/man1/$name-ofi.1"
    rm "$man/man1/$name.1"
done
sed '/^\.TH/s/"7"/"7rstream"/' "$man/man7/fi_rstream.7" >"$man/man7/fi_rstream.7rstream"
rm "$man/man7/fi_rstream.7"
chmod -x "$stage/share/rstream/compare-common.sh"
# The page of several names is found by each.
for name in connect cp footprint msg pingpong; do ln -sf fi_stream_bw.1 "$man/man1/fi_stream_$name.1"; done
for name in ctl wait; do ln -sf repoll_create.3 "$man/man3/repoll_$name.3"; done
for name in riounmap riowrite; do ln -sf riomap.3 "$man/man3/$name.3"; done
# Programs for libfabric need no -I for this one.
mkdir -p "$stage/include/rdma"
ln -sf ../rsocket-ofi/rdma/fi_ext_rstream.h "$stage/include/rdma/fi_ext_rstream.h"
