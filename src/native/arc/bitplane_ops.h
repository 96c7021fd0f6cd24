// Arithmetic on bit masks of rows and on 32x32 bit boards. Everything has internal linkage, because kernels
// are compiled once per instruction set; no standard library templates here.
#pragma once

#include <stdint.h>
#include <string.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace {

inline uint32_t low_bits(int count) { return count >= 32 ? ~0u : (1u << count) - 1u; }

// The columns from `first` to `last`.
inline uint32_t column_range(int first, int last) { return low_bits(last + 1) & ~low_bits(first); }

inline int lowest_bit(uint32_t word) { return __builtin_ctz(word); }

inline int highest_bit(uint32_t word) { return 31 - __builtin_clz(word); }

inline uint32_t reverse_bits(uint32_t x) {
  x = ((x >> 1) & 0x55555555u) | ((x & 0x55555555u) << 1);
  x = ((x >> 2) & 0x33333333u) | ((x & 0x33333333u) << 2);
  x = ((x >> 4) & 0x0F0F0F0Fu) | ((x & 0x0F0F0F0Fu) << 4);
  return __builtin_bswap32(x);
}

// Shifts to higher columns if `by` is positive, to lower ones if it is negative.
inline uint32_t shift_columns(uint32_t x, int by) {
  if (by <= -32 || by >= 32) return 0;
  return by >= 0 ? x << by : x >> -by;
}

// Transposes a board: bit c of row r moves to bit r of row c.
inline void transpose32(uint32_t* board) {
  uint32_t mask = 0x0000FFFFu;
  for (int j = 16; j != 0; j >>= 1, mask ^= mask << j) {
    for (int k = 0; k < 32; k = ((k | j) + 1) & ~j) {
      const uint32_t swap = ((board[k] >> j) ^ board[k | j]) & mask;
      board[k] ^= swap << j;
      board[k | j] ^= swap;
    }
  }
}

// Spreads the eight bits of a byte to the lowest bits of eight bytes.
inline uint64_t spread_bits(uint32_t byte) {
  const uint64_t picked = (byte * 0x0101010101010101ull) & 0x8040201008040201ull;
  return ((picked + 0x7F7F7F7F7F7F7F7Full) >> 7) & 0x0101010101010101ull;
}

// Converts eight columns of four bit-planes to colors; columns that are not `inside` become -1.
inline uint64_t unpack8(const uint32_t* plane, int64_t stride, int shift, uint32_t inside) {
  uint64_t cells = spread_bits((plane[0] >> shift) & 0xFF);
  cells |= spread_bits((plane[stride] >> shift) & 0xFF) << 1;
  cells |= spread_bits((plane[2 * stride] >> shift) & 0xFF) << 2;
  cells |= spread_bits((plane[3 * stride] >> shift) & 0xFF) << 3;
  return cells | spread_bits(~(inside >> shift) & 0xFF) * 0xFF;
}

// Converts a row of bit-planes to colors. Writes 8 bytes for up to 8 columns, and 32 bytes otherwise.
inline void unpack_row(const uint32_t* plane, int64_t stride, uint32_t inside, int64_t columns, int8_t* out) {
  if (columns <= 8) {
    const uint64_t cells = unpack8(plane, stride, 0, inside);
    memcpy(out, &cells, 8);
    return;
  }
#ifdef __AVX2__
  const __m256i pick = _mm256_set_epi64x(0x0303030303030303ll, 0x0202020202020202ll, 0x0101010101010101ll, 0);
  const __m256i bit = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201ull));
  auto expand = [&](uint32_t word) {
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(word)), pick);
    return _mm256_cmpeq_epi8(_mm256_and_si256(bytes, bit), bit);
  };
  __m256i cells = _mm256_and_si256(expand(plane[0]), _mm256_set1_epi8(1));
  cells = _mm256_or_si256(cells, _mm256_and_si256(expand(plane[stride]), _mm256_set1_epi8(2)));
  cells = _mm256_or_si256(cells, _mm256_and_si256(expand(plane[2 * stride]), _mm256_set1_epi8(4)));
  cells = _mm256_or_si256(cells, _mm256_and_si256(expand(plane[3 * stride]), _mm256_set1_epi8(8)));
  cells = _mm256_or_si256(cells, expand(~inside));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), cells);
#else
  for (int shift = 0; shift < 32; shift += 8) {
    const uint64_t cells = unpack8(plane, stride, shift, inside);
    memcpy(out + shift, &cells, 8);
  }
#endif
}

inline uint32_t pack8(const uint8_t* cells) {
  uint64_t eight;
  memcpy(&eight, cells, 8);
  return static_cast<uint32_t>((eight * 0x0102040810204080ull) >> 56);
}

// Converts `columns` bytes of 0 or 1 to a bit mask, eight at a time. The last eight overlap those before.
inline uint32_t pack_row(const uint8_t* cells, int64_t columns) {
  uint32_t word = 0;
  if (columns < 8) {
    for (int64_t c = 0; c < columns; ++c) word |= static_cast<uint32_t>(cells[c] & 1) << c;
    return word;
  }
  for (int64_t c = 0; c + 8 <= columns; c += 8) word |= pack8(cells + c) << c;
  return word | pack8(cells + columns - 8) << (columns - 8);
}

// Returns a pseudorandom number (the finalizer of MurmurHash3), as the XLA backend does.
inline uint32_t murmur3_mix32(uint32_t seed, uint32_t counter) {
  uint32_t x = seed + counter * 0x9E3779B9u;
  x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
  x = (x ^ (x >> 13)) * 0xC2B2AE35u;
  return x ^ (x >> 16);
}

}  // namespace
