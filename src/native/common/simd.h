// Vectors of eight floats, and what the language model's kernels compute with them. Everything is of the file that
// includes it, for each instruction set compiles its own; no standard templates here, of which the linker may keep the
// wrong copy.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

namespace phalanx {
namespace {

constexpr int kLanes = 8;           // numbers of a vector
constexpr int kPanel = 2 * kLanes;  // columns of a tile
constexpr float kLog2E = 1.44269504088896341f;

typedef float Vector __attribute__((vector_size(32)));
typedef float Loose __attribute__((vector_size(32), aligned(4)));  // wherever it stands in memory
typedef int32_t Mask __attribute__((vector_size(32)));
typedef uint32_t Bits __attribute__((vector_size(32)));

// Not a sum with zero, which would have to turn -0 into 0.
inline Vector spread(float x) { return Vector{x, x, x, x, x, x, x, x}; }
inline Vector choose(Mask mask, Vector yes, Vector no) { return mask ? yes : no; }
inline Vector larger(Vector a, Vector b) { return choose(a > b, a, b); }
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t round_up(int64_t number, int64_t step) { return (number + step - 1) / step * step; }
inline float sum_of(Vector v) { return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7])); }
inline Vector& at(float* numbers) { return *reinterpret_cast<Vector*>(numbers); }
inline const Vector& at(const float* numbers) { return *reinterpret_cast<const Vector*>(numbers); }
inline void zero(float* numbers, int64_t count) { memset(numbers, 0, sizeof(float) * static_cast<size_t>(count)); }

// The first `count` lanes.
inline Mask seen_of(int64_t count) { return Mask{0, 1, 2, 3, 4, 5, 6, 7} < static_cast<int32_t>(count); }

// 2 to the x, to a unit or two in the last place; exactly 0 from -127 down; x must be below 128. NaN stays NaN.
inline Vector power_of_two(Vector x) {
  const Vector magic = spread(12582912.0f);  // 1.5 * 2^23: what is added to it is rounded to a whole number
  x = choose(x < spread(-127.0f), spread(-127.0f), x);
  const Vector shifted = x + magic;
  const Vector f = x - (shifted - magic);
  Vector sum = spread(1.54035303933816e-4f);
  sum = sum * f + 1.33335581464284e-3f;
  sum = sum * f + 9.61812910762848e-3f;
  sum = sum * f + 5.55041086648216e-2f;
  sum = sum * f + 2.40226506959101e-1f;
  sum = sum * f + 6.93147180559945e-1f;
  sum = sum * f + 1.0f;
  return sum * (Vector)(((Bits)shifted - 0x4B400000u + 127u) << 23);
}

// c[i][j] = (or +=) sum over k of a[i * row + k * column] b[k][j], for R rows and V vectors of columns: every sum is in
// the order of k, whatever the tile that it is in.
template <int R, int V>
inline void tile(const float* a, int64_t row, int64_t column, const float* b, int64_t b_row, float* c, int64_t c_row,
                 int64_t depth, bool add) {
  Vector sum[R][V];
  for (int i = 0; i < R; ++i)
    for (int v = 0; v < V; ++v) sum[i][v] = add ? at(c + i * c_row + v * kLanes) : Vector{};
  for (int64_t k = 0; k < depth; ++k) {
    Vector right[V];
    for (int v = 0; v < V; ++v) right[v] = at(b + k * b_row + v * kLanes);
    for (int i = 0; i < R; ++i) {
      const Vector left = spread(a[i * row + k * column]);
      for (int v = 0; v < V; ++v) sum[i][v] += left * right[v];
    }
  }
  for (int i = 0; i < R; ++i)
    for (int v = 0; v < V; ++v) at(c + i * c_row + v * kLanes) = sum[i][v];
}

// Scratch memory handed out piece by piece, each piece a whole number of panels.
struct Arena {
  float* free;
  float* take(int64_t floats) {
    float* here = free;
    free += round_up(floats, kPanel);
    return here;
  }
};

}  // namespace
}  // namespace phalanx
