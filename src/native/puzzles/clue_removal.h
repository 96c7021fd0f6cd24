// Removal of clues from a solved puzzle while the solution stays unique.
#pragma once

#include <cstdint>

#include "common/random.h"
#include "puzzles/puzzles.h"
#include "puzzles/search.h"

namespace phalanx::puzzles {

// Removes clues in random order while the solution stays unique, until `num_blanks` cells are blank (0).
// Values count from 1.
template <class Rules>
PuzzleBytes remove_clues(const Rules& rules, const PuzzleBytes& solution, uint16_t all_values, int num_blanks,
                         SplitMix64& rng) {
  const int cells = static_cast<int>(solution.size());
  PuzzleBytes clues = solution;
  Domains domains{};
  for (int c = 0; c < cells; ++c) domains[c] = static_cast<uint16_t>(1u << (solution[c] - 1));
  int num_removed = 0;
  for (int cell : rng.permutation(cells)) {
    if (num_removed == num_blanks) break;
    const uint16_t value = domains[cell];
    // The clues so far have one solution. Without this clue, another solution has another value in this cell.
    domains[cell] = all_values & ~value;
    Search<Rules> search(rules, cells, 1);
    search.run(domains);
    if (search.solutions.empty()) {
      domains[cell] = all_values;
      clues[cell] = 0;
      ++num_removed;
    } else {
      domains[cell] = value;
    }
  }
  return clues;
}

}  // namespace phalanx::puzzles
