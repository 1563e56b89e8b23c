#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Makes configure and the Makefile templates in a checkout.
set -e
cd "$(dirname "$0")"
mkdir -p config
exec autoreconf --install --force --warnings=all
