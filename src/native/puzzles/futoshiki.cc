// Futoshiki: a Latin square with inequalities between neighboring cells.
// Parameters: size, number of inequalities, number of blank cells. Bytes: clues (0 is blank), solution,
// inequalities as pairs of cells of which the first has the smaller value.

#include <stdexcept>

#include "puzzles/clue_removal.h"
#include "puzzles/latin_square.h"
#include "puzzles/puzzles.h"
#include "puzzles/search.h"

namespace phalanx::puzzles {

PuzzleBytes generate_futoshiki(uint64_t seed, const Parameters& parameters) {
  SplitMix64 rng(seed);
  const int size = parameters.at(0);
  LatinSquare rules(size, 1, size);
  const PuzzleBytes solution = rules.fill_random(rng);
  std::vector<std::pair<int, int>> pairs;
  for (int cell = 0; cell < rules.cells; ++cell) {
    if (cell % size + 1 < size) pairs.emplace_back(cell, cell + 1);
    if (cell + size < rules.cells) pairs.emplace_back(cell, cell + size);
  }
  rng.shuffle(pairs, static_cast<int>(pairs.size()));
  pairs.resize(parameters.at(1));
  for (auto& pair : pairs) {
    if (solution[pair.first] > solution[pair.second]) std::swap(pair.first, pair.second);
  }
  rules.inequalities = pairs;
  PuzzleBytes bytes = remove_clues(rules, solution, rules.all_values, parameters.at(2), rng);
  bytes.insert(bytes.end(), solution.begin(), solution.end());
  for (const auto& [smaller, larger] : pairs) {
    bytes.push_back(static_cast<uint8_t>(smaller));
    bytes.push_back(static_cast<uint8_t>(larger));
  }
  return bytes;
}

// The puzzle consists of the clues and the inequalities.
Solutions solve_futoshiki(const PuzzleBytes& puzzle, const Parameters& parameters, size_t max_solutions) {
  LatinSquare rules(parameters.at(0), 1, parameters.at(0));
  const size_t cells = static_cast<size_t>(rules.cells);
  if (puzzle.size() < cells || (puzzle.size() - cells) % 2)
    throw std::invalid_argument("futoshiki: the puzzle must have one byte per cell and two per inequality");
  for (size_t i = cells; i < puzzle.size(); i += 2) {
    if (puzzle[i] >= cells || puzzle[i + 1] >= cells)
      throw std::invalid_argument("futoshiki: an inequality is outside the grid");
    rules.inequalities.emplace_back(puzzle[i], puzzle[i + 1]);
  }
  return find_solutions(rules, rules.clue_domains(puzzle.data()), rules.cells, max_solutions, 1);
}

}  // namespace phalanx::puzzles
