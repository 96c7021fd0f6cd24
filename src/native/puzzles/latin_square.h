// Latin squares, optionally with boxes (sudoku) or inequalities between cells (futoshiki).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "common/random.h"
#include "puzzles/search.h"

namespace phalanx::puzzles {

// With `box_rows` > 1, every box of `box_rows` x `box_columns` cells has each value once, too.
class LatinSquare {
 public:
  LatinSquare(int size, int box_rows, int box_columns);
  bool propagate(Domains& domains) const;
  bool accepts(const Domains&) const { return true; }
  // Returns a random square that satisfies the rules.
  PuzzleBytes fill_random(SplitMix64& rng) const;
  // Converts clues (0 for a blank cell) to domains.
  Domains clue_domains(const uint8_t* clues) const;

  // Pairs of cells of which the first has the smaller value.
  std::vector<std::pair<int, int>> inequalities;
  const uint16_t all_values;
  const int size, cells;

 private:
  std::vector<std::vector<int>> groups_;
  std::vector<uint32_t> groups_of_;
};

}  // namespace phalanx::puzzles
