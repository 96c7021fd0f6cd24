// A parallel loop over chunks, on the threads of XLA's pool (inside custom calls) or on new threads
// (elsewhere).
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace phalanx {

// The number of devices of this process that run custom calls at the same time. They share XLA's pool, so
// each of them uses an equal part of its threads.
inline std::atomic<int64_t>& num_devices() {
  static std::atomic<int64_t> devices{1};
  return devices;
}

// Starts workers on XLA's thread pool. A task may start late, even after the loop has ended.
class PoolLauncher {
 public:
  explicit PoolLauncher(xla::ffi::ThreadPool& pool) : pool_(pool) {}

  int64_t max_workers() const {
    return std::max<int64_t>(1, pool_.num_threads() / num_devices().load(std::memory_order_relaxed));
  }
  template <typename Task>
  bool start(Task task) {
    pool_.Schedule(std::move(task));
    return true;
  }
  void join() {}

 private:
  xla::ffi::ThreadPool& pool_;
};

// Starts workers on threads of their own.
class ThreadLauncher {
 public:
  explicit ThreadLauncher(int64_t max_workers) : max_workers_(max_workers) {
    threads_.reserve(static_cast<size_t>(std::max<int64_t>(0, max_workers - 1)));
  }
  ThreadLauncher(const ThreadLauncher&) = delete;
  ~ThreadLauncher() { join(); }

  int64_t max_workers() const { return max_workers_; }
  template <typename Task>
  bool start(Task task) {
    try {
      threads_.emplace_back(std::move(task));
    } catch (const std::system_error&) {
      return false;
    }
    return true;
  }
  void join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  int64_t max_workers_;
  std::vector<std::thread> threads_;
};

// Calls `work(worker, begin, end)` for chunks of at most `grain` items that cover [0, count). Chunks with the
// same worker number, which is below `launcher.max_workers()`, run one after another.
//
// The calling thread is one of the workers. At the end it waits only for chunks that another worker has
// claimed, so a pool whose threads are all busy cannot cause a deadlock, and it sleeps while it waits,
// because other work may use the other cores. If a thread cannot be started, the loop runs on fewer workers.
// The first exception is rethrown here after the chunks that have started are done; chunks that have not are
// skipped.
template <typename Launcher, typename Work>
void parallel_for(Launcher&& launcher, int64_t count, int64_t grain, const Work& work) {
  if (count <= 0) return;
  const int64_t num_chunks = (count + grain - 1) / grain;
  const int64_t num_workers = std::min(num_chunks, launcher.max_workers());
  if (num_workers <= 1) {
    work(int64_t{0}, int64_t{0}, count);
    return;
  }
  struct State {
    std::atomic<int64_t> next_chunk{0}, next_worker{0};
    std::atomic<bool> failed{false};
    std::mutex mutex;
    std::condition_variable all_done;
    int64_t num_done = 0;
    std::exception_ptr error;
  };
  // Tasks that start late own a share of the state, but must not touch `work`: it may be gone by then.
  auto state = std::make_shared<State>();
  auto run = [state, num_chunks, count, grain, &work] {
    int64_t worker = -1, num_claimed = 0;
    std::exception_ptr error;
    for (;;) {
      const int64_t chunk = state->next_chunk.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= num_chunks) break;
      ++num_claimed;
      if (worker < 0) worker = state->next_worker.fetch_add(1, std::memory_order_relaxed);
      if (state->failed.load(std::memory_order_relaxed)) continue;
      try {
        const int64_t begin = chunk * grain;
        work(worker, begin, std::min(begin + grain, count));
      } catch (...) {
        error = std::current_exception();
        state->failed = true;
      }
    }
    if (num_claimed == 0) return;
    std::lock_guard<std::mutex> lock(state->mutex);
    if (error && !state->error) state->error = error;
    state->num_done += num_claimed;
    if (state->num_done == num_chunks) state->all_done.notify_one();
  };
  for (int64_t helper = 1; helper < num_workers; ++helper)
    if (!launcher.start(run)) break;
  run();
  {
    std::unique_lock<std::mutex> lock(state->mutex);
    state->all_done.wait(lock, [&] { return state->num_done == num_chunks; });
  }
  launcher.join();
  if (state->error) std::rethrow_exception(state->error);
}

}  // namespace phalanx
