// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// For builds with --enable-precompiled-header: what most sources include of the standard library, compiled once. To read
// these headers takes as long as the rest of a source's compilation. No file includes this one, each includes what it
// needs itself: the packages are built without it. It has no guard: it is a compiler's main file, or comes before that.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>
