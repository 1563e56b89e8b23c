// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What a descriptor number of ours can stand for: a socket, or a set of repoll_create(3). As with an open file of the
// kernel's, it ends when the last number that names it is closed and the last call that uses it has returned. Who only
// keeps a reference, as a set does to its sockets, does not delay that.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace rsockets {

class Object {
  public:
    // What it is: each class has its own as `own_kind`. Every call asks, and dynamic_cast compares names.
    enum class Kind : uint8_t { socket, epoll_set, inherited };

    explicit Object(Kind kind) : kind_(kind) {}
    Object(const Object&) = delete;
    Object& operator=(const Object&) = delete;
    virtual ~Object() = default;

    [[nodiscard]] Kind kind() const { return kind_; }

    void retain() { counts_.fetch_add(one_use, std::memory_order_relaxed); }
    void release() {
        if (uses(counts_.fetch_sub(one_use, std::memory_order_acq_rel)) == 1) {
#ifndef __clang_analyzer__ // which does not count
            delete this;
#endif
        }
    }

    void number_given() { counts_.fetch_add(one_hold, std::memory_order_relaxed); }
    void number_taken() {
        if (holds(counts_.fetch_sub(one_hold, std::memory_order_acq_rel)) == 1) {
            hang_up();
        }
    }
    // A call has a reference too.
    void call_begins() { counts_.fetch_add(one_use + one_hold, std::memory_order_relaxed); }
    void call_ends() {
        uint64_t counts = counts_.load(std::memory_order_relaxed);
        while (holds(counts) > 1) { // and whoever else holds it has a reference
            if (counts_.compare_exchange_weak(counts, counts - one_use - one_hold, std::memory_order_acq_rel,
                                              std::memory_order_relaxed)) {
                return;
            }
        }
        number_taken();
        release();
    }
    // It has ended.
    [[nodiscard]] bool closed() const { return holds(counts_.load(std::memory_order_acquire)) == 0; }

  protected:
    virtual void hang_up() = 0;

  private:
    // In one word, since every call changes both: the uses are references, the holds numbers and calls under way.
    static constexpr uint64_t one_use = 1;
    static constexpr uint64_t one_hold = uint64_t{1} << 32;
    static uint32_t uses(uint64_t counts) { return static_cast<uint32_t>(counts); }
    static uint32_t holds(uint64_t counts) { return static_cast<uint32_t>(counts >> 32); }

    std::atomic<uint64_t> counts_{one_use};
    const Kind kind_;
};

// The object as what it is; none if it is something else.
template <class T> T* as_kind(Object* object) {
    return object != nullptr && object->kind() == T::own_kind ? static_cast<T*>(object) : nullptr;
}

// Keeps an object. A new object comes with one use, which `adopt` takes over.
template <class T> class Ref {
  public:
    Ref() = default;
    explicit Ref(T* object) : object_(object) {
        if (object_ != nullptr) {
            object_->retain();
        }
    }
    static Ref adopt(T* object) {
        Ref ref;
        ref.object_ = object;
        return ref;
    }
    Ref(const Ref& other) : Ref(other.object_) {}
    Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
    Ref& operator=(Ref other) noexcept {
        std::swap(object_, other.object_);
        return *this;
    }
    ~Ref() {
        if (object_ != nullptr) {
            object_->release();
        }
    }

    [[nodiscard]] T* get() const { return object_; }
    T* operator->() const { return object_; }
    T& operator*() const { return *object_; }
    explicit operator bool() const { return object_ != nullptr; }
    bool operator==(const Ref& other) const { return object_ == other.object_; }

  private:
    T* object_ = nullptr;
};

// A call that uses an object.
class Use {
  public:
    Use() = default;
    explicit Use(Object* object) : object_(object) {
        if (object_ != nullptr) {
            object_->call_begins();
        }
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    Use(Use&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
    Use& operator=(Use&& other) noexcept {
        std::swap(object_, other.object_);
        return *this;
    }
    ~Use() {
        if (object_ != nullptr) {
            object_->call_ends();
        }
    }

    [[nodiscard]] Ref<Object> ref() const { return Ref<Object>(object_); }
    [[nodiscard]] Object* get() const { return object_; }
    explicit operator bool() const { return object_ != nullptr; }
    template <class T> [[nodiscard]] T* as() const { return as_kind<T>(object_); }

  private:
    Object* object_ = nullptr;
};

} // namespace rsockets
