// Deals out work to threads.

#pragma once

#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

#include "lanes.h"

// Calls `work(item, scratch)` for all items, begun in their order; each thread has `numbers` of scratch memory, zero at
// first. Threads of our own end with the call: one that forked afterwards could not miss them.
template <class Work>
void share(Int items, Int threads, Int numbers, Work work) {
    std::atomic<Int> next{0};
    auto run = [&] {
        std::vector<Lanes> scratch(numbers / WIDTH + 1);
        for (Int item; (item = next++) < items;) work(item, reinterpret_cast<float*>(scratch.data()));
    };
    std::vector<std::thread> others;
    try {
        while (static_cast<Int>(others.size()) + 1 < std::min(threads, items)) others.emplace_back(run);
    } catch (const std::system_error&) {
        // the system gives no more: those that there are do it all
    }
    run();
    for (auto& other : others) other.join();
}

// Hands out pieces of a thread's memory.
struct Scratch {
    float* next;

    float* take(Int numbers) {
        float* taken = next;
        next += (numbers + WIDTH - 1) / WIDTH * WIDTH;
        return taken;
    }
};
