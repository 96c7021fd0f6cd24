// Hashes of goals, and what unification binds variables to: what the search for successors is made of.
#pragma once

#include <cstdint>
#include <utility>

namespace phalanx::proofs {

constexpr uint64_t kSeed = 0x243F6A8885A308D3ull;

// The hash of a goal list, one atom after the other.
template <int kArity>
uint64_t mix(uint64_t hash, const int32_t* atom) {
  if constexpr (kArity == 3) hash = (hash ^ uint64_t(uint32_t(atom[3]))) * 0xBF58476D1CE4E5B9ull;
  hash ^= uint64_t(uint32_t(atom[0])) << 40 ^ uint64_t(uint32_t(atom[1])) << 20 ^ uint64_t(uint32_t(atom[2]));
  hash *= 0x9E3779B97F4A7C15ull;
  return hash ^ hash >> 29;
}

// What a head or a fact binds the variables among the first goal's arguments to.
template <int kArity>
struct Substitution {
  int count = 0;
  int32_t variables[kArity], values[kArity];

  int32_t operator()(int32_t term) const {
    for (int k = 0; k < count; ++k)
      if (term == variables[k]) return values[k];
    return term;
  }

  // Makes two terms equal, of which the first one may be a variable of any bound; false where they cannot be.
  bool unify(int32_t one, int32_t other, int32_t first_variable) {
    one = (*this)(one), other = (*this)(other);
    if (one == other) return true;
    if (one < first_variable) std::swap(one, other);
    if (one < first_variable) return false;
    // What was bound to it is bound to what it stands for now.
    for (int k = 0; k < count; ++k)
      if (values[k] == one) values[k] = other;
    variables[count] = one, values[count++] = other;
    return true;
  }
};

}  // namespace phalanx::proofs
