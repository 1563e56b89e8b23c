// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What stands for a parent's socket in its child: the number can be closed, duplicated and asked for its flags, and is
// otherwise a connection that was reset.
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
