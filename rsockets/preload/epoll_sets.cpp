// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
// SPDX-FileCopyrightText: The rstream authors
//
// An epoll set is the kernel's as long as nothing carried is in it. Then it becomes one of the library's, under the
// same number, around the kernel's: what was registered before stays where it is.
#include "rsockets/preload/epoll_sets.hpp"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "rsockets/preload/kick.hpp"
#include "rsockets/preload/lock.hpp"
#include "rsockets/preload/log.hpp"
#include "rsockets/preload/real.hpp"

namespace preload {

namespace {

// What the kernel's set `set` watches under a number, as /proc tells it.
bool registered(int set, int number, epoll_event& event) {
    std::array<char, 64> path{};
    snprintf(path.data(), path.size(), "/proc/self/fdinfo/%d", set);
    const int fd = real::open(path.data(), O_RDONLY | O_CLOEXEC, 0UL);
    if (fd < 0) {
        return false;
    }
    bool found = false;
    std::array<char, 4096> text{};
    size_t held = 0;
    for (ssize_t n = 1; n > 0 && !found;) {
        n = real::read(fd, text.data() + held, text.size() - 1 - held);
        held += n > 0 ? static_cast<size_t>(n) : 0;
        text[held] = '\0';
        char* line = text.data();
        for (char* end = nullptr; !found && (end = strchr(line, '\n')) != nullptr; line = end + 1) {
            int tfd = -1;
            unsigned events = 0;
            unsigned long long data = 0;
            if (strncmp(line, "tfd:", 4) == 0 &&
                sscanf(line, "tfd: %d events: %x data: %llx", &tfd, &events, &data) == 3 && tfd == number) {
                event.events = events;
                event.data.u64 = data;
                found = true;
            }
        }
        held -= static_cast<size_t>(line - text.data());
        memmove(text.data(), line, held);
        if (held == text.size() - 1) {
            held = 0; // no line is as long as that
        }
    }
    real::close(fd);
    return found;
}

} // namespace

namespace epoll_sets {

void Followers::take_out(const Carrier& carrier, int number) {
    table::for_each([&](int set, Kind kind, Entry* entry) {
        if ((kind != Kind::set && kind != Kind::kernel_set) || set == number || count_ == most || entry == nullptr) {
            return;
        }
        Place place{set, {}};
        const int kernel = kind == Kind::set ? entry->kernel.load() : set;
        if (kind == Kind::set && carrier.own->epoll_interest(set, number, &place.event) == 0) {
            (void)carrier.epoll_ctl(set, EPOLL_CTL_DEL, number, nullptr);
        } else if (!registered(kernel, number, place.event) ||
                   real::epoll_ctl(kernel, EPOLL_CTL_DEL, number, nullptr) != 0) {
            return;
        }
        places_[count_++] = place;
    });
}

void Followers::put_back(const Carrier& carrier, int number, bool of_library) {
    for (size_t i = 0; i < count_; ++i) {
        Place& place = places_[i];
        if (table::kind(place.set) == Kind::set || (of_library && convert_set(carrier, place.set) == 0)) {
            (void)carrier.epoll_ctl(place.set, EPOLL_CTL_ADD, number, &place.event);
        } else {
            (void)real::epoll_ctl(place.set, EPOLL_CTL_ADD, number, &place.event);
        }
    }
}

} // namespace epoll_sets

int convert_set(const Carrier& carrier, int set) {
    const Changing changing;
    if (table::kind(set) == Kind::set) {
        return 0;
    }
    const caller::Inside inside;
    Entry* entry = table::entry(set);
    if (entry == nullptr && ((entry = table::new_entry()) == nullptr || !table::put(set, Kind::kernel_set, entry))) {
        return ENOMEM;
    }
    // The library closes the one that it is given, and the shim keeps one to ask /proc about.
    const int kernel = keep(set);
    const int given = keep(set);
    if (kernel < 0 || given < 0) {
        return EMFILE;
    }
    const int made = carrier.own->epoll_around(given);
    if (made < 0) {
        return errno;
    }
    entry->kernel.store(kernel);
    int error = 0;
    const auto for_its_numbers = [&](auto&& body) {
        table::for_each([&](int number, Kind, Entry* its) {
            if (its == entry) {
                body(number);
            }
        });
    };
    for_its_numbers([&](int number) {
        if (error == 0 && carrier.own->share(made, number) != 0) {
            error = ENOMEM;
        }
    });
    if (error == 0) {
        // Whoever is still in the kernel's wait is out of it before the number names what only the library can read.
        table::change(entry, Kind::set);
        kick::wake(*entry, kernel);
        for_its_numbers([&](int number) {
            const int failed = switch_number(carrier, number, made, true);
            error = error == 0 ? failed : error;
        });
    } else {
        for_its_numbers([&](int number) { (void)carrier.own->drop(number); });
    }
    (void)carrier.close(made);
    return error;
}

} // namespace preload
