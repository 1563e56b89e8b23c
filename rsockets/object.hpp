// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// What a descriptor number of ours can stand for: a socket, or a set of repoll_create(3). As with an open file of the
// kernel's, it ends when the last number that names it is closed and the last call that uses it has returned. Who only
// keeps a reference, as a set does to its sockets, does not delay that.
#pragma once

#include <atomic>
#include <utility>

namespace rsockets {

class Object {
  public:
    Object() = default;
    Object(const Object&) = delete;
    Object& operator=(const Object&) = delete;
    virtual ~Object() = default;

    void retain() { uses_.fetch_add(1, std::memory_order_relaxed); }
    void release() {
        if (uses_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
#ifndef __clang_analyzer__ // which does not count
            delete this;
#endif
        }
    }

    void number_given() { holds_.fetch_add(1, std::memory_order_relaxed); }
    void call_begins() { holds_.fetch_add(1, std::memory_order_relaxed); }
    // A number was taken back, or a call has returned.
    void let_go() {
        if (holds_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
            hang_up();
        }
    }
    // It has ended.
    [[nodiscard]] bool closed() const { return holds_.load(std::memory_order_acquire) <= 0; }

  protected:
    virtual void hang_up() = 0;

  private:
    std::atomic<int> uses_{1};  // references
    std::atomic<int> holds_{0}; // numbers, and calls under way
};

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
        if (object != nullptr) {
            object->call_begins();
        }
    }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    Use(Use&& other) noexcept = default;
    Use& operator=(Use&& other) noexcept {
        std::swap(object_, other.object_);
        return *this;
    }
    ~Use() {
        if (object_) {
            object_->let_go();
        }
    }

    [[nodiscard]] const Ref<Object>& ref() const { return object_; }
    [[nodiscard]] Object* get() const { return object_.get(); }
    explicit operator bool() const { return static_cast<bool>(object_); }
    template <class T> [[nodiscard]] T* as() const { return dynamic_cast<T*>(object_.get()); }

  private:
    Ref<Object> object_;
};

} // namespace rsockets
