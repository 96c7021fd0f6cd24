// Sudoku. Parameters: size, rows and columns of a box, number of blank cells. Bytes: clues (0 is blank),
// solution.

#include <stdexcept>

#include "puzzles/clue_removal.h"
#include "puzzles/latin_square.h"
#include "puzzles/puzzles.h"
#include "puzzles/search.h"

namespace phalanx::puzzles {

PuzzleBytes generate_sudoku(uint64_t seed, const Parameters& parameters) {
  SplitMix64 rng(seed);
  const LatinSquare rules(parameters.at(0), parameters.at(1), parameters.at(2));
  const PuzzleBytes solution = rules.fill_random(rng);
  PuzzleBytes bytes = remove_clues(rules, solution, rules.all_values, parameters.at(3), rng);
  bytes.insert(bytes.end(), solution.begin(), solution.end());
  return bytes;
}

// The puzzle consists of the clues.
Solutions solve_sudoku(const PuzzleBytes& puzzle, const Parameters& parameters, size_t max_solutions) {
  const LatinSquare rules(parameters.at(0), parameters.at(1), parameters.at(2));
  if (puzzle.size() != static_cast<size_t>(rules.cells))
    throw std::invalid_argument("sudoku: the puzzle must have one byte per cell");
  return find_solutions(rules, rules.clue_domains(puzzle.data()), rules.cells, max_solutions, 1);
}

}  // namespace phalanx::puzzles
