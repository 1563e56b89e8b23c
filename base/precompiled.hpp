// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// For builds with --enable-precompiled-header: the standard headers that most sources include, compiled once. Parsing
// them takes as long as the rest of a source's compilation. No source includes this one, and each includes what it
// needs itself: the part `libfabric2` of the checks compiles without it. It has no include guard: the compiler reads it
// as the main file or ahead of the main file.
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>
