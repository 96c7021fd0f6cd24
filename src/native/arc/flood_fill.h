// Connected regions on boards of bit masks, one per row. Everything has internal linkage, because kernels are
// compiled once per instruction set; no standard library templates here.
#pragma once

#include <stdint.h>

namespace {

// Returns the bits of `run` that are connected to `seed` within `run`.
inline uint32_t fill_run(uint32_t run, uint32_t seed) {
  // Upward: the carry of one addition propagates through the run.
  uint32_t filled = (run & ~(run + seed)) | seed;
  // Downward: by doubling the distance.
  uint32_t through = run;
  filled |= through & (filled >> 1);
  through &= through >> 1;
  filled |= through & (filled >> 2);
  through &= through >> 2;
  filled |= through & (filled >> 4);
  through &= through >> 4;
  filled |= through & (filled >> 8);
  through &= through >> 8;
  filled |= through & (filled >> 16);
  return filled;
}

// Grows `region` to its 4-connected component within `open`.
inline void flood(const uint32_t* open, uint32_t* region, int rows) {
  // Sweep down and up until nothing changes. A winding path needs many sweeps; usually, two or three are
  // enough.
  bool changed = true;
  while (changed) {
    changed = false;
    for (int sweep = 0; sweep < 2; ++sweep) {
      uint32_t before = 0;
      for (int k = 0; k < rows; ++k) {
        const int r = sweep == 0 ? k : rows - 1 - k;
        const uint32_t seed = (region[r] | before) & open[r];
        if (seed != 0) {
          const uint32_t grown = fill_run(open[r], seed);
          changed |= grown != region[r];
          region[r] = grown;
        }
        before = region[r];
      }
    }
  }
}

}  // namespace
