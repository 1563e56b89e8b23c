// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The call of loading.h.
#include "rsockets/api.hpp"

#include "rsockets/loading.h"
#include "rsockets/provider.hpp"

using namespace rsockets;

RSOCKET_API void rsocket_load_providers_1() {
    const Call call;
    base::Info found;
    if (const base::Info hints = provider::hints(); call.refusal() == 0 && hints) {
        provider::get_info(*hints, found);
    }
}
