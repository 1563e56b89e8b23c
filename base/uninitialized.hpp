// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// An allocator with which a vector of bytes that is resized does not set the new ones to zero first: for buffers that
// are filled next.
#pragma once

#include <memory>
#include <new>
#include <utility>

namespace base {

template <class T> struct Uninitialized : std::allocator<T> {
    template <class U> struct rebind { using other = Uninitialized<U>; };
    using std::allocator<T>::allocator;

    template <class U> void construct(U* at) noexcept { ::new (static_cast<void*>(at)) U; }
    template <class U, class... Arguments> void construct(U* at, Arguments&&... arguments) {
        ::new (static_cast<void*>(at)) U(std::forward<Arguments>(arguments)...);
    }
};

} // namespace base
