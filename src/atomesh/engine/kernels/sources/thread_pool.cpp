// Threads that spin for a short while after a piece of work, because the next comes at once, and then sleep.

#include "thread_pool.h"

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "export.h"

namespace atomesh {
namespace {

constexpr int32_t kMostThreads = 1024;

std::atomic<int32_t> spin_count{1000};

inline void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

class Pool {
public:
    void run(int32_t threads, int64_t pieces, void (*work)(void*, int64_t), void* context) {
        std::lock_guard<std::mutex> turn(turn_);
        grow(threads - 1);
        work_ = work;
        context_ = context;
        pieces_ = pieces;
        helpers_ = threads - 1;
        next_.store(0, std::memory_order_relaxed);
        open_.store(true);
        announce();
        take_pieces();
        // A helper says that it is inside before it looks whether the work is open, so that either it sees the
        // door closed, or is seen here.
        open_.store(false);
        while (inside_.load() != 0) relax();
    }

private:
    // Fewer, where the machine refuses threads: those that there are do the work.
    void grow(int32_t helpers) {
        while (static_cast<int32_t>(threads_.size()) < helpers) {
            const int32_t index = static_cast<int32_t>(threads_.size());
            const uint64_t seen = round_.load();
            try {
                threads_.emplace_back([this, index, seen] { help(index, seen); });
            } catch (const std::system_error&) {
                return;
            }
            threads_.back().detach();
        }
    }

    void announce() {
        round_.fetch_add(1);
        if (sleeping_.load() == 0) return;
        std::lock_guard<std::mutex> lock(sleep_);
        wake_.notify_all();
    }

    void help(int32_t index, uint64_t seen) {
        for (;;) {
            seen = await_round(seen);
            inside_.fetch_add(1);
            if (open_.load() && index < helpers_) take_pieces();
            inside_.fetch_sub(1);
        }
    }

    uint64_t await_round(uint64_t seen) {
        const int32_t spins = spin_count.load(std::memory_order_relaxed);
        for (int32_t i = 0; i < spins; ++i) {
            const uint64_t now = round_.load(std::memory_order_acquire);
            if (now != seen) return now;
            relax();
        }
        std::unique_lock<std::mutex> lock(sleep_);
        sleeping_.fetch_add(1);
        wake_.wait(lock, [&] { return round_.load() != seen; });
        sleeping_.fetch_sub(1);
        return round_.load();
    }

    void take_pieces() {
        for (;;) {
            const int64_t piece = next_.fetch_add(1, std::memory_order_relaxed);
            if (piece >= pieces_) return;
            work_(context_, piece);
        }
    }

    std::mutex turn_;
    std::vector<std::thread> threads_;
    void (*work_)(void*, int64_t) = nullptr;
    void* context_ = nullptr;
    int64_t pieces_ = 0;
    int32_t helpers_ = 0;
    alignas(64) std::atomic<int64_t> next_{0};
    alignas(64) std::atomic<uint64_t> round_{0};
    std::atomic<bool> open_{false};
    alignas(64) std::atomic<int32_t> inside_{0};
    std::atomic<int32_t> sleeping_{0};
    std::mutex sleep_;
    std::condition_variable wake_;
};

// A forked child has none of its parent's threads: it starts a pool of its own. Neither is ever taken down, since
// their threads may outlive main().
Pool& pool() {
    static std::mutex guard;
    static Pool* current = nullptr;
    static pid_t owner = 0;
    std::lock_guard<std::mutex> lock(guard);
    const pid_t process = getpid();
    if (owner != process) {
        current = new Pool;
        owner = process;
    }
    return *current;
}

}  // namespace

void run_in_parallel(int32_t threads, int64_t pieces, void (*work)(void*, int64_t), void* context) {
    if (threads > kMostThreads) threads = kMostThreads;
    if (threads > pieces) threads = static_cast<int32_t>(pieces);
    if (threads <= 1) {
        for (int64_t piece = 0; piece < pieces; ++piece) work(context, piece);
        return;
    }
    pool().run(threads, pieces, work, context);
}

}  // namespace atomesh

// How many times a thread looks for more work before it sleeps; one look takes 20 to 50 ns.
ATOMESH_EXPORT void atomesh_set_spin(int32_t count) { atomesh::spin_count.store(count < 0 ? 0 : count); }

// The sum of `count` integers, in pieces of 256: what the pool's tests call.
ATOMESH_EXPORT int64_t atomesh_sum_in_parallel(const int64_t* values, int64_t count, int32_t threads) {
    std::atomic<int64_t> sum{0};
    atomesh::run_in_parallel(threads, (count + 255) / 256, [&](int64_t piece) {
        int64_t part = 0;
        for (int64_t i = piece * 256; i < count && i < (piece + 1) * 256; ++i) part += values[i];
        sum.fetch_add(part, std::memory_order_relaxed);
    });
    return sum.load();
}
