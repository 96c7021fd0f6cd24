// Binary puzzles: each row and column has as many zeros as ones, never three equal digits in sequence, and no
// two rows and no two columns are equal. Parameters: size, number of blank cells. Bytes: clues (0 is blank),
// solution; 1 stands for the digit zero and 2 for the digit one.

#include <array>
#include <stdexcept>

#include "puzzles/clue_removal.h"
#include "puzzles/puzzles.h"
#include "puzzles/search.h"

namespace phalanx::puzzles {

namespace {

constexpr uint16_t kBoth = 3;

class Binary {
 public:
  explicit Binary(int size) : size_(size) {}

  bool propagate(Domains& domains) const {
    bool changed = true;
    const auto exclude = [&](int cell, uint16_t value) {
      if (!(domains[cell] & value)) return true;
      domains[cell] &= ~value;
      changed = true;
      return domains[cell] != 0;
    };
    while (changed) {
      changed = false;
      for (int number = 0; number < 2 * size_; ++number) {
        const Line line(number, size_);
        for (const uint16_t value : {1, 2}) {
          int count = 0;
          for (int i = 0; i < size_; ++i) {
            const bool here = domains[line.at(i)] == value;
            count += here;
            if (here && i + 1 < size_ && domains[line.at(i + 1)] == value) {
              if (i > 0 && !exclude(line.at(i - 1), value)) return false;
              if (i + 2 < size_ && !exclude(line.at(i + 2), value)) return false;
            }
            if (here && i + 2 < size_ && domains[line.at(i + 2)] == value &&
                !exclude(line.at(i + 1), value)) {
              return false;
            }
          }
          if (2 * count > size_) return false;
          for (int i = 0; 2 * count == size_ && i < size_; ++i) {
            if (domains[line.at(i)] == kBoth && !exclude(line.at(i), value)) return false;
          }
        }
      }
    }
    return true;
  }

  bool accepts(const Domains& domains) const {
    for (int side = 0; side < 2; ++side) {
      std::array<bool, 1 << 10> seen{};
      for (int i = 0; i < size_; ++i) {
        const Line line(side * size_ + i, size_);
        int bits = 0;
        for (int j = 0; j < size_; ++j) bits = 2 * bits + (domains[line.at(j)] == 2);
        if (seen[bits]) return false;
        seen[bits] = true;
      }
    }
    return true;
  }

 private:
  int size_;
};

}  // namespace

PuzzleBytes generate_binary(uint64_t seed, const Parameters& parameters) {
  SplitMix64 rng(seed);
  const int size = parameters.at(0), cells = size * size;
  const Binary rules(size);
  Search<Binary> search(rules, cells, 1, &rng);
  search.run(all_open(kBoth, cells));
  PuzzleBytes solution(cells);
  for (int c = 0; c < cells; ++c) solution[c] = static_cast<uint8_t>(search.solutions.at(0)[c]);
  PuzzleBytes bytes = remove_clues(rules, solution, kBoth, parameters.at(1), rng);
  bytes.insert(bytes.end(), solution.begin(), solution.end());
  return bytes;
}

Solutions solve_binary(const PuzzleBytes& puzzle, const Parameters& parameters, size_t max_solutions) {
  const int size = parameters.at(0), cells = size * size;
  if (puzzle.size() != static_cast<size_t>(cells))
    throw std::invalid_argument("binary: the puzzle must have one byte per cell");
  Domains domains = all_open(kBoth, cells);
  for (int c = 0; c < cells; ++c) {
    if (puzzle[c] > 2) throw std::invalid_argument("binary: cells must be 0 (blank), 1 or 2");
    if (puzzle[c]) domains[c] = puzzle[c];
  }
  return find_solutions(Binary(size), domains, cells, max_solutions, 1);
}

}  // namespace phalanx::puzzles
