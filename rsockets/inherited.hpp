// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// Placeholder in a child for a parent's socket: the descriptor can be closed, duplicated and queried for its flags, and
// otherwise behaves as a connection that was reset.
#pragma once

#include "rsockets/object.hpp"

namespace rsockets {

class Inherited final : public Object {
  public:
    static constexpr Kind own_kind = Kind::inherited;
    Inherited() : Object(own_kind) {}

  protected:
    void hang_up() override {}
};

} // namespace rsockets
