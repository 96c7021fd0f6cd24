// Vectors of eight floats and functions on them. Everything has internal linkage, because each kernel is
// compiled once per instruction set; no standard library templates here, because the linker might keep the
// wrong copy of one.
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

namespace phalanx {
namespace {

constexpr int kLanes = 8;           // floats in a vector
constexpr int kPanel = 2 * kLanes;  // columns of a matrix tile
constexpr float kLog2E = 1.44269504088896341f;

typedef float Vector __attribute__((vector_size(32)));
typedef float UnalignedVector __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t Mask __attribute__((vector_size(32)));
typedef uint32_t Bits __attribute__((vector_size(32)));

// Not `Vector{} + x`, which turns -0 into 0.
inline Vector broadcast(float x) { return Vector{x, x, x, x, x, x, x, x}; }
inline Vector select(Mask mask, Vector if_true, Vector if_false) { return mask ? if_true : if_false; }
inline Vector max_lanes(Vector a, Vector b) { return select(a > b, a, b); }
inline int64_t min_int(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t round_up(int64_t number, int64_t step) { return (number + step - 1) / step * step; }
// The order of the additions is part of the result.
inline float horizontal_sum(Vector v) {
  return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}
inline Vector& vector_at(float* numbers) { return *reinterpret_cast<Vector*>(numbers); }
inline const Vector& vector_at(const float* numbers) { return *reinterpret_cast<const Vector*>(numbers); }
inline UnalignedVector& unaligned_at(float* numbers) { return *reinterpret_cast<UnalignedVector*>(numbers); }
inline const UnalignedVector& unaligned_at(const float* numbers) {
  return *reinterpret_cast<const UnalignedVector*>(numbers);
}
inline void set_zero(float* numbers, int64_t count) {
  memset(numbers, 0, sizeof(float) * static_cast<size_t>(count));
}

// Selects the first `count` lanes.
inline Mask first_lanes(int64_t count) { return Mask{0, 1, 2, 3, 4, 5, 6, 7} < static_cast<int32_t>(count); }

// Computes 2^x with an error of one or two units in the last place. The result is exactly 0 for x <= -127 and
// NaN for NaN; x must be below 128.
inline Vector exp2_lanes(Vector x) {
  const Vector magic = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  x = select(x < broadcast(-127.0f), broadcast(-127.0f), x);
  const Vector shifted = x + magic;
  const Vector f = x - (shifted - magic);
  Vector sum = broadcast(1.54035303933816e-4f);
  sum = sum * f + 1.33335581464284e-3f;
  sum = sum * f + 9.61812910762848e-3f;
  sum = sum * f + 5.55041086648216e-2f;
  sum = sum * f + 2.40226506959101e-1f;
  sum = sum * f + 6.93147180559945e-1f;
  sum = sum * f + 1.0f;
  return sum * (Vector)(((Bits)shifted - 0x4B400000u + 127u) << 23);
}

// Computes c[i][j] = sum over k of a[i * a_row + k * a_column] * b[k][j] for R rows and V vectors of columns,
// or adds it to c. Every sum is in the order of k, so it does not depend on the size of the tile.
template <int R, int V>
inline void multiply_tile(const float* a, int64_t a_row, int64_t a_column, const float* b, int64_t b_row,
                          float* c, int64_t c_row, int64_t depth, bool add) {
  Vector sum[R][V];
  for (int i = 0; i < R; ++i)
    for (int v = 0; v < V; ++v) sum[i][v] = add ? vector_at(c + i * c_row + v * kLanes) : Vector{};
  for (int64_t k = 0; k < depth; ++k) {
    Vector right[V];
    for (int v = 0; v < V; ++v) right[v] = vector_at(b + k * b_row + v * kLanes);
    for (int i = 0; i < R; ++i) {
      const Vector left = broadcast(a[i * a_row + k * a_column]);
      for (int v = 0; v < V; ++v) sum[i][v] += left * right[v];
    }
  }
  for (int i = 0; i < R; ++i)
    for (int v = 0; v < V; ++v) vector_at(c + i * c_row + v * kLanes) = sum[i][v];
}

// Allocates parts of a block of scratch memory, each aligned to a panel.
struct Arena {
  float* next;
  float* allocate(int64_t floats) {
    float* part = next;
    next += round_up(floats, kPanel);
    return part;
  }
};

}  // namespace
}  // namespace phalanx
