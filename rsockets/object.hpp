// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// The object behind a descriptor of this library: a socket, or a set of repoll_create(3). Like an open file description
// of the kernel, it is closed when its last descriptor is closed and the last call that uses it has returned. A mere
// reference, as a set holds to its sockets, does not delay that.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace rsockets {

class Object {
  public:
    // The type, `own_kind` in each class. Every call checks it, and dynamic_cast would compare names.
    enum class Kind : uint8_t { socket, epoll_set, inherited };

    explicit Object(Kind kind) : kind_(kind) {}
    Object(const Object&) = delete;
    Object& operator=(const Object&) = delete;
    virtual ~Object() = default;

    [[nodiscard]] Kind kind() const { return kind_; }

    void retain() { counts_.fetch_add(one_use, std::memory_order_relaxed); }
    void release() {
        if (uses(counts_.fetch_sub(one_use, std::memory_order_acq_rel)) == 1) {
#ifndef __clang_analyzer__ // the analyzer does not track the count
            delete this;
#endif
        }
    }

    void number_given() { counts_.fetch_add(one_number, std::memory_order_relaxed); }
    void number_taken() { drop(one_number); }
    // A call also holds a reference.
    void call_begins() { counts_.fetch_add(one_use + one_call, std::memory_order_relaxed); }
    void call_ends() {
        uint64_t counts = counts_.load(std::memory_order_relaxed);
        while (held(counts - one_call)) { // every other hold comes with a reference
            if (counts_.compare_exchange_weak(counts, counts - one_use - one_call, std::memory_order_acq_rel,
                                              std::memory_order_relaxed)) {
                return;
            }
        }
        drop(one_call);
        release();
    }
    // No other call than the caller's is in progress.
    [[nodiscard]] bool only_call() const { return counts_.load(std::memory_order_acquire) / one_call == 1; }
    // No descriptor and no call is left.
    [[nodiscard]] bool closed() const { return !held(counts_.load(std::memory_order_acquire)); }

  protected:
    virtual void hang_up() = 0;

  private:
    void drop(uint64_t hold) {
        if (!held(counts_.fetch_sub(hold, std::memory_order_acq_rel) - hold)) {
            hang_up();
        }
    }

    // In one word, since every call changes two: references, descriptors and calls in progress.
    static constexpr uint64_t one_use = 1;
    static constexpr uint64_t one_number = uint64_t{1} << 24;
    static constexpr uint64_t one_call = uint64_t{1} << 44;
    static uint64_t uses(uint64_t counts) { return counts % one_number; }
    static bool held(uint64_t counts) { return counts >= one_number; }

    std::atomic<uint64_t> counts_{one_use};
    const Kind kind_;
};

// Downcast; null if the object is of another kind.
template <class T> T* as_kind(Object* object) {
    return object != nullptr && object->kind() == T::own_kind ? static_cast<T*>(object) : nullptr;
}

// Counted reference. A new object starts with one use, which `adopt` takes over.
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

// Scope of a call that uses an object.
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
