// Puzzles as bytes: what the makers and solvers of each kind are called, and the search that most of them use.
// `phalanx.puzzles.twins` does the same in Python, draw by draw; tests hold the two to the same bytes.

#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

namespace phalanx::puzzles {

using Record = std::vector<uint8_t>;
using Parameters = std::vector<int>;

inline constexpr int kMostAttempts = 100000;

// SplitMix64: the numbers that a seed stands for, on every machine and in both languages.
class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(seed) {}

  int below(int bound) {
    state_ += 0x9E3779B97F4A7C15ull;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    return static_cast<int>(((z >> 32) * static_cast<uint64_t>(bound)) >> 32);
  }

  template <class Items>
  void shuffle(Items& items, int count) {
    for (int i = count - 1; i > 0; --i) std::swap(items[i], items[below(i + 1)]);
  }

  std::vector<int> order(int count) {
    std::vector<int> items(count);
    for (int i = 0; i < count; ++i) items[i] = i;
    shuffle(items, count);
    return items;
  }

 private:
  uint64_t state_;
};

// What each variable can still be, as bits.
inline constexpr int kMostVariables = 128;
using Domains = std::array<uint16_t, kMostVariables>;

inline bool is_single(uint16_t mask) { return (mask & (mask - 1)) == 0; }
inline int lowest(uint16_t mask) { return __builtin_ctz(mask); }
inline int highest(uint16_t mask) { return 31 - __builtin_clz(mask); }

// Depth first, the variable with the fewest values first. `Rules` has `propagate(Domains&)`, which narrows to
// a fixed point or says that nothing is left, and `accepts(Domains)` for what propagation does not see.
template <class Rules>
class Search {
 public:
  Search(const Rules& rules, int variables, size_t limit, Draws* draws = nullptr)
      : rules_(rules), variables_(variables), limit_(limit), draws_(draws) {
    if (variables > kMostVariables) throw std::invalid_argument("a puzzle has too many variables");
  }

  std::vector<Domains> found;

  void run(Domains domains) {
    if (!rules_.propagate(domains)) return;
    int best = -1, least = 17;
    for (int v = 0; v < variables_ && least > 2; ++v) {
      const int count = __builtin_popcount(domains[v]);
      if (count > 1 && count < least) best = v, least = count;
    }
    if (best < 0) {
      if (rules_.accepts(domains)) found.push_back(domains);
      return;
    }
    std::array<int, 16> values;
    int count = 0;
    for (uint16_t rest = domains[best]; rest; rest &= rest - 1) values[count++] = lowest(rest);
    if (draws_ != nullptr) draws_->shuffle(values, count);
    for (int i = 0; i < count && found.size() < limit_; ++i) {
      Domains next = domains;
      next[best] = static_cast<uint16_t>(1u << values[i]);
      run(next);
    }
  }

 private:
  const Rules& rules_;
  int variables_;
  size_t limit_;
  Draws* draws_;
};

// Take values away in a drawn order, as long as the rest has one solution, until `blanks` are gone. Values
// count from 1, 0 is a blank.
template <class Rules>
Record with_blanks(const Rules& rules, const Record& solution, uint16_t all, int blanks, Draws& draws) {
  const int cells = static_cast<int>(solution.size());
  Record given = solution;
  Domains domains{};
  for (int c = 0; c < cells; ++c) domains[c] = static_cast<uint16_t>(1u << (solution[c] - 1));
  int removed = 0;
  for (int cell : draws.order(cells)) {
    if (removed == blanks) break;
    const uint16_t own = domains[cell];
    // With this cell given there is one solution; another one would have another value here.
    domains[cell] = all & ~own;
    Search<Rules> search(rules, cells, 1);
    search.run(domains);
    if (search.found.empty()) {
      domains[cell] = all;
      given[cell] = 0;
      ++removed;
    } else {
      domains[cell] = own;
    }
  }
  return given;
}

template <class Rules>
std::vector<Record> solutions_of(const Rules& rules, const Domains& domains, int variables, size_t limit,
                                 int first_value) {
  Search<Rules> search(rules, variables, limit);
  search.run(domains);
  std::vector<Record> results;
  for (const Domains& found : search.found) {
    Record values(variables);
    for (int v = 0; v < variables; ++v) values[v] = static_cast<uint8_t>(lowest(found[v]) + first_value);
    results.push_back(std::move(values));
  }
  return results;
}

// Latin squares with boxes or with signs between neighbors.
class Latin {
 public:
  Latin(int size, int box_rows, int box_columns);
  bool propagate(Domains& domains) const;
  bool accepts(const Domains&) const { return true; }
  Record filled(Draws& draws) const;
  Domains domains_of(const uint8_t* given) const;

  std::vector<std::pair<int, int>> less;  // the first is smaller than the second
  const uint16_t all;
  const int size, cells;

 private:
  std::vector<std::vector<int>> groups_;
  std::vector<uint32_t> groups_of_;
};

Record make_sudoku(uint64_t seed, const Parameters& parameters);
Record make_futoshiki(uint64_t seed, const Parameters& parameters);
Record make_binary(uint64_t seed, const Parameters& parameters);
Record make_nonogram(uint64_t seed, const Parameters& parameters);
Record make_hitori(uint64_t seed, const Parameters& parameters);
Record make_bridges(uint64_t seed, const Parameters& parameters);
Record make_sokoban(uint64_t seed, const Parameters& parameters);
Record make_knights(uint64_t seed, const Parameters& parameters);

using Solutions = std::vector<Record>;
Solutions solve_sudoku(const Record& puzzle, const Parameters& parameters, size_t limit);
Solutions solve_futoshiki(const Record& puzzle, const Parameters& parameters, size_t limit);
Solutions solve_binary(const Record& puzzle, const Parameters& parameters, size_t limit);
Solutions solve_nonogram(const Record& puzzle, const Parameters& parameters, size_t limit);
Solutions solve_hitori(const Record& puzzle, const Parameters& parameters, size_t limit);
Solutions solve_bridges(const Record& puzzle, const Parameters& parameters, size_t limit);
Solutions solve_sokoban(const Record& puzzle, const Parameters& parameters, size_t limit);
Solutions solve_knights(const Record& puzzle, const Parameters& parameters, size_t limit);

void bind_puzzles(nanobind::module_& module);

}  // namespace phalanx::puzzles
