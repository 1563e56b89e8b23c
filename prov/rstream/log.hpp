// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Messages through libfabric's log (FI_LOG_LEVEL, FI_LOG_PROV=rstream); nothing is ever written to stderr directly.
// warn: something is lost or refused, with the reason. info: details for a user who searches for a cause.
#pragma once

#include <cerrno>

#include <rdma/fabric.h>
#include <rdma/providers/fi_log.h>
#include <rdma/providers/fi_prov.h>

namespace rstream {
extern fi_provider provider;
}

#define RSTREAM_WARN(subsystem, ...) FI_WARN(&::rstream::provider, subsystem, __VA_ARGS__)
#define RSTREAM_INFO(subsystem, ...) FI_INFO(&::rstream::provider, subsystem, __VA_ARGS__)
