#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# SPDX-FileCopyrightText: The rstream authors
CONFORMANCE_WAY=fabric exec "${srcdir:?}/preload/test/conformance.sh" "$@"
