// A loop over a batch, shared between the calling thread and XLA's own pool.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "xla/ffi/api/ffi.h"

namespace phalanx {

// How many devices of this process step at the same time: each takes its share of the pool's threads.
inline std::atomic<int64_t>& sharing_devices() {
  static std::atomic<int64_t> devices{1};
  return devices;
}

// Calls `work(begin, end)` for chunks of [0, count). The caller takes chunks too and at the end waits only
// for chunks that a pool thread has begun, so a pool whose threads are all busy cannot deadlock it; it
// sleeps while it waits, since other work may own the other cores.
template <typename Work>
void parallel_for(xla::ffi::ThreadPool& pool, int64_t count, int64_t grain, const Work& work) {
  const int64_t chunks = (count + grain - 1) / grain;
  const int64_t threads = pool.num_threads() / sharing_devices().load(std::memory_order_relaxed);
  const int64_t helpers = chunks < threads ? chunks - 1 : threads - 1;
  if (helpers <= 0) {
    work(int64_t{0}, count);
    return;
  }
  struct Shared {
    std::atomic<int64_t> next{0};
    std::mutex mutex;
    std::condition_variable finished;
    int64_t done = 0;
  };
  auto shared = std::make_shared<Shared>();
  // `work` is only touched while chunks are left, and the caller does not return before all are done.
  auto take_chunks = [shared, chunks, count, grain, &work] {
    int64_t mine = 0;
    for (;;) {
      const int64_t chunk = shared->next.fetch_add(1, std::memory_order_relaxed);
      if (chunk >= chunks) break;
      const int64_t begin = chunk * grain;
      work(begin, begin + grain < count ? begin + grain : count);
      ++mine;
    }
    if (mine == 0) return;
    std::lock_guard<std::mutex> lock(shared->mutex);
    shared->done += mine;
    if (shared->done == chunks) shared->finished.notify_one();
  };
  for (int64_t h = 0; h < helpers; ++h) pool.Schedule(decltype(take_chunks)(take_chunks));
  take_chunks();
  std::unique_lock<std::mutex> lock(shared->mutex);
  shared->finished.wait(lock, [&] { return shared->done == chunks; });
}

}  // namespace phalanx
