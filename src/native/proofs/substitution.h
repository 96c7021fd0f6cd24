// Hashes of goal lists, and the variable bindings that unification finds.
#pragma once

#include <cstdint>
#include <utility>

namespace phalanx::proofs {

constexpr uint64_t kHashSeed = 0x243F6A8885A308D3ull;

// Returns the hash of a goal list, given the hash of the goals before this one.
template <int kArity>
uint64_t hash_atom(uint64_t hash, const int32_t* atom) {
  if constexpr (kArity == 3) hash = (hash ^ uint64_t(uint32_t(atom[3]))) * 0xBF58476D1CE4E5B9ull;
  hash ^= uint64_t(uint32_t(atom[0])) << 40 ^ uint64_t(uint32_t(atom[1])) << 20 ^ uint64_t(uint32_t(atom[2]));
  hash *= 0x9E3779B97F4A7C15ull;
  return hash ^ hash >> 29;
}

// Bindings of the variables in the first goal.
template <int kArity>
struct Substitution {
  int count = 0;
  int32_t variables[kArity], values[kArity];

  int32_t operator()(int32_t term) const {
    for (int k = 0; k < count; ++k)
      if (term == variables[k]) return values[k];
    return term;
  }

  // Binds variables so that two terms become equal; returns false if that is impossible. Terms from
  // `first_variable` on are variables.
  bool unify(int32_t first, int32_t second, int32_t first_variable) {
    first = (*this)(first), second = (*this)(second);
    if (first == second) return true;
    if (first < first_variable) std::swap(first, second);
    if (first < first_variable) return false;
    // Variables that were bound to this variable are now bound to its value.
    for (int k = 0; k < count; ++k)
      if (values[k] == first) values[k] = second;
    variables[count] = first, values[count++] = second;
    return true;
  }
};

}  // namespace phalanx::proofs
