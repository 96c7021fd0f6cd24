// Nonograms: each row and column has a clue, the lengths of its runs of filled cells.
// Parameters: size, percentage of filled cells. Bytes: clues of the rows and then the columns, each padded
// with zeros to (size + 1) / 2 numbers; solution, 1 where a cell is filled.

#include <map>
#include <stdexcept>
#include <vector>

#include "puzzles/puzzles.h"
#include "puzzles/search.h"

namespace phalanx::puzzles {

namespace {

constexpr uint16_t kBoth = 3;

using Runs = std::vector<uint8_t>;

Runs run_lengths(int mask, int size) {
  Runs runs((size + 1) / 2, 0);
  int count = 0, length = 0;
  for (int i = 0; i <= size; ++i) {
    if (i < size && (mask >> i & 1)) {
      ++length;
    } else if (length) {
      runs[count++] = static_cast<uint8_t>(length);
      length = 0;
    }
  }
  return runs;
}

// Returns all lines of a size as bit masks, grouped by their clue.
const std::map<Runs, std::vector<int>>& lines_by_clue(int size) {
  static thread_local std::map<int, std::map<Runs, std::vector<int>>> cache;
  auto& table = cache[size];
  if (table.empty()) {
    for (int mask = 0; mask < 1 << size; ++mask) table[run_lengths(mask, size)].push_back(mask);
  }
  return table;
}

// Domains: bit 0 is empty, bit 1 is filled.
class Nonogram {
 public:
  Nonogram(const uint8_t* clues, int size) : size_(size) {
    static const std::vector<int> none;
    const int slots = (size + 1) / 2;
    const auto& table = lines_by_clue(size);
    for (int line = 0; line < 2 * size; ++line) {
      const auto solutions = table.find(Runs(clues + line * slots, clues + (line + 1) * slots));
      lines_.push_back(solutions == table.end() ? &none : &solutions->second);
    }
  }

  bool propagate(Domains& domains) const {
    uint32_t dirty = (1u << 2 * size_) - 1;
    while (dirty) {
      const int number = __builtin_ctz(dirty);
      dirty &= dirty - 1;
      const Line line(number, size_);
      int fill_random = 0, empty = 0;
      for (int i = 0; i < size_; ++i) {
        fill_random |= (domains[line.at(i)] == 2) << i;
        empty |= (domains[line.at(i)] == 1) << i;
      }
      int filled_in_all = (1 << size_) - 1, filled_in_any = 0;
      for (const int mask : *lines_[number]) {
        if ((mask & fill_random) == fill_random && !(mask & empty))
          filled_in_all &= mask, filled_in_any |= mask;
      }
      if (filled_in_all & ~filled_in_any) return false;
      for (int i = 0; i < size_; ++i) {
        const uint16_t narrowed = filled_in_all >> i & 1 ? 2 : filled_in_any >> i & 1 ? 3 : 1;
        if (domains[line.at(i)] == (domains[line.at(i)] & narrowed)) continue;
        domains[line.at(i)] &= narrowed;
        dirty |= 1u << (number < size_ ? size_ + i : i);
      }
    }
    return true;
  }

  bool accepts(const Domains&) const { return true; }

 private:
  int size_;
  std::vector<const std::vector<int>*> lines_;
};

}  // namespace

PuzzleBytes generate_nonogram(uint64_t seed, const Parameters& parameters) {
  SplitMix64 rng(seed);
  const int size = parameters.at(0), cells = size * size;
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    PuzzleBytes solution(cells), bytes;
    for (int c = 0; c < cells; ++c) solution[c] = rng.below(100) < parameters.at(1);
    for (int number = 0; number < 2 * size; ++number) {
      const Line line(number, size);
      int mask = 0;
      for (int i = 0; i < size; ++i) mask |= solution[line.at(i)] << i;
      const Runs runs = run_lengths(mask, size);
      bytes.insert(bytes.end(), runs.begin(), runs.end());
    }
    const Nonogram rules(bytes.data(), size);
    Search<Nonogram> search(rules, cells, 2);
    search.run(all_open(kBoth, cells));
    if (search.solutions.size() != 1) continue;
    bytes.insert(bytes.end(), solution.begin(), solution.end());
    return bytes;
  }
  throw std::runtime_error(
      "nonogram: no puzzle with a unique solution found; change the percentage of filled cells");
}

Solutions solve_nonogram(const PuzzleBytes& puzzle, const Parameters& parameters, size_t max_solutions) {
  const int size = parameters.at(0);
  if (puzzle.size() != static_cast<size_t>(2 * size * ((size + 1) / 2))) {
    throw std::invalid_argument("nonogram: the puzzle must have (size + 1) / 2 bytes per row and column");
  }
  return find_solutions(Nonogram(puzzle.data(), size), all_open(kBoth, size * size), size * size,
                        max_solutions, 0);
}

}  // namespace phalanx::puzzles
