// Puzzle generators and solvers. Puzzles and solutions are byte strings; the files of the kinds describe
// their formats. The same seed and parameters give the same bytes on every machine.
#pragma once

#include <cstdint>
#include <vector>

namespace phalanx::puzzles {

using PuzzleBytes = std::vector<uint8_t>;
using Parameters = std::vector<int>;
using Solutions = std::vector<PuzzleBytes>;

// Generators draw random boards until one has a unique solution, and give up after this many.
inline constexpr int kMaxAttempts = 100000;

// Generate the puzzle of a seed.
PuzzleBytes generate_sudoku(uint64_t seed, const Parameters& parameters);
PuzzleBytes generate_futoshiki(uint64_t seed, const Parameters& parameters);
PuzzleBytes generate_binary(uint64_t seed, const Parameters& parameters);
PuzzleBytes generate_nonogram(uint64_t seed, const Parameters& parameters);
PuzzleBytes generate_hitori(uint64_t seed, const Parameters& parameters);
PuzzleBytes generate_bridges(uint64_t seed, const Parameters& parameters);
PuzzleBytes generate_sokoban(uint64_t seed, const Parameters& parameters);
PuzzleBytes generate_knights(uint64_t seed, const Parameters& parameters);

// Find up to `max_solutions` solutions. Throw std::invalid_argument if the puzzle is malformed.
Solutions solve_sudoku(const PuzzleBytes& puzzle, const Parameters& parameters, size_t max_solutions);
Solutions solve_futoshiki(const PuzzleBytes& puzzle, const Parameters& parameters, size_t max_solutions);
Solutions solve_binary(const PuzzleBytes& puzzle, const Parameters& parameters, size_t max_solutions);
Solutions solve_nonogram(const PuzzleBytes& puzzle, const Parameters& parameters, size_t max_solutions);
Solutions solve_hitori(const PuzzleBytes& puzzle, const Parameters& parameters, size_t max_solutions);
Solutions solve_bridges(const PuzzleBytes& puzzle, const Parameters& parameters, size_t max_solutions);
Solutions solve_sokoban(const PuzzleBytes& puzzle, const Parameters& parameters, size_t max_solutions);
Solutions solve_knights(const PuzzleBytes& puzzle, const Parameters& parameters, size_t max_solutions);

}  // namespace phalanx::puzzles
