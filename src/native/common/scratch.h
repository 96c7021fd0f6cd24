// Aligned memory for kernels: scratch memory of a thread, and large buffers.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

namespace phalanx {

constexpr int kScratchSlots = 2;

// Returns memory of the calling thread for at least `floats` floats, aligned to 64 bytes. Each slot is a
// separate block; it is kept from call to call, and its contents are arbitrary.
inline float* thread_scratch(int64_t floats, int slot = 0) {
  thread_local std::vector<float> blocks[kScratchSlots];
  std::vector<float>& block = blocks[slot];
  if (static_cast<int64_t>(block.size()) < floats + 16) block.resize(static_cast<size_t>(floats + 16));
  const auto address = reinterpret_cast<uintptr_t>(block.data());
  return reinterpret_cast<float*>((address + 63) / 64 * 64);
}

struct FreeMemory {
  void operator()(float* memory) const { std::free(memory); }
};
using FloatBuffer = std::unique_ptr<float, FreeMemory>;

// Allocates uninitialized memory, aligned to 64 bytes; null if there is not enough. Large blocks use huge
// pages: a KV cache is read completely at every step, and this saves a tenth of the time.
inline FloatBuffer allocate_floats(int64_t floats) {
  constexpr int64_t kHugePage = int64_t{1} << 21;
  const int64_t bytes = floats * static_cast<int64_t>(sizeof(float));
  const int64_t alignment = bytes < kHugePage ? 64 : kHugePage;
  const int64_t size = (bytes + alignment) / alignment * alignment;
  void* memory = std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(size));
#ifdef MADV_HUGEPAGE
  if (memory != nullptr && alignment == kHugePage) madvise(memory, static_cast<size_t>(size), MADV_HUGEPAGE);
#endif
  return FloatBuffer(static_cast<float*>(memory));
}

}  // namespace phalanx
