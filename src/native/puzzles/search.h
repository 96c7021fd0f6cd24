// Constraint propagation with depth-first search.
#pragma once

#include <array>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "common/random.h"
#include "puzzles/puzzles.h"

namespace phalanx::puzzles {

// The values that each variable can still take, as bit sets.
inline constexpr int kMaxVariables = 128;
using Domains = std::array<uint16_t, kMaxVariables>;

inline bool is_single(uint16_t mask) { return (mask & (mask - 1)) == 0; }
inline int lowest(uint16_t mask) { return __builtin_ctz(mask); }
inline int highest(uint16_t mask) { return 31 - __builtin_clz(mask); }

// Depth-first search that branches on the variable with the fewest values. `Rules` has two functions:
// `propagate(Domains&)` narrows the domains to a fixed point and returns false if there is no solution;
// `accepts(const Domains&)` checks a complete assignment for rules that propagation does not cover.
// With `rng`, values are tried in random order.
template <class Rules>
class Search {
 public:
  Search(const Rules& rules, int variables, size_t max_solutions, SplitMix64* rng = nullptr)
      : rules_(rules), variables_(variables), max_solutions_(max_solutions), rng_(rng) {
    if (variables > kMaxVariables) throw std::invalid_argument("a puzzle must have at most 128 variables");
  }

  std::vector<Domains> solutions;

  void run(Domains domains) {
    if (!rules_.propagate(domains)) return;
    int best = -1, fewest = 17;
    for (int v = 0; v < variables_ && fewest > 2; ++v) {
      const int count = __builtin_popcount(domains[v]);
      if (count > 1 && count < fewest) best = v, fewest = count;
    }
    if (best < 0) {
      if (rules_.accepts(domains)) solutions.push_back(domains);
      return;
    }
    std::array<int, 16> values;
    int count = 0;
    for (uint16_t rest = domains[best]; rest; rest &= rest - 1) values[count++] = lowest(rest);
    if (rng_ != nullptr) rng_->shuffle(values, count);
    for (int i = 0; i < count && solutions.size() < max_solutions_; ++i) {
      Domains next = domains;
      next[best] = static_cast<uint16_t>(1u << values[i]);
      run(next);
    }
  }

 private:
  const Rules& rules_;
  int variables_;
  size_t max_solutions_;
  SplitMix64* rng_;
};

// Returns up to `max_solutions` solutions as the value of each variable plus `value_offset`.
template <class Rules>
std::vector<PuzzleBytes> find_solutions(const Rules& rules, const Domains& domains, int variables,
                                        size_t max_solutions, int value_offset) {
  Search<Rules> search(rules, variables, max_solutions);
  search.run(domains);
  std::vector<PuzzleBytes> results;
  for (const Domains& solution : search.solutions) {
    PuzzleBytes values(variables);
    for (int v = 0; v < variables; ++v) values[v] = static_cast<uint8_t>(lowest(solution[v]) + value_offset);
    results.push_back(std::move(values));
  }
  return results;
}

// The cells of a row (`line` < size) or column of a square grid.
struct Line {
  Line(int line, int size) : start(line < size ? line * size : line - size), stride(line < size ? 1 : size) {}
  int at(int index) const { return start + index * stride; }
  int start, stride;
};

// Returns domains that are all equal to `mask`.
inline Domains all_open(uint16_t mask, size_t variables) {
  Domains domains{};
  for (size_t v = 0; v < variables && v < domains.size(); ++v) domains[v] = mask;
  return domains;
}

}  // namespace phalanx::puzzles
