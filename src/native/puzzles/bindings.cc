// Python functions: generate and solve puzzles of a kind. Python code validates the parameters; the checks
// here only prevent reads and writes outside of arrays and searches without end.

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <stdexcept>
#include <string>

#include "module.h"
#include "puzzles/puzzles.h"

namespace nb = nanobind;

namespace phalanx {
namespace puzzles {
namespace {

struct Kind {
  PuzzleBytes (*generate)(uint64_t, const Parameters&);
  Solutions (*solve)(const PuzzleBytes&, const Parameters&, size_t);
  size_t num_parameters;
  int max_size;
};

const Kind& find_kind(const std::string& name, const Parameters& parameters) {
  static const std::map<std::string, Kind> kinds{
      {"binary", {generate_binary, solve_binary, 2, 10}},
      {"bridges", {generate_bridges, solve_bridges, 2, 9}},
      {"futoshiki", {generate_futoshiki, solve_futoshiki, 3, 9}},
      {"hitori", {generate_hitori, solve_hitori, 2, 9}},
      {"knights", {generate_knights, solve_knights, 2, 6}},
      {"nonogram", {generate_nonogram, solve_nonogram, 2, 10}},
      {"sokoban", {generate_sokoban, solve_sokoban, 7, 8}},
      {"sudoku", {generate_sudoku, solve_sudoku, 4, 9}},
  };
  const auto require = [&name](bool condition, const std::string& message) {
    if (!condition) throw std::invalid_argument(name + ": " + message);
  };
  const auto found = kinds.find(name);
  require(found != kinds.end(), "unknown kind of puzzle");
  const Kind& kind = found->second;
  require(parameters.size() == kind.num_parameters, "expected " + std::to_string(kind.num_parameters) +
                                                        " parameters, got " +
                                                        std::to_string(parameters.size()));
  for (const int value : parameters) require(value >= 0, "parameters must not be negative");
  const int size = parameters[0];
  require(size >= 3 && size <= kind.max_size, "the size must be 3 to " + std::to_string(kind.max_size));
  if (name == "sudoku")
    require(parameters[1] >= 1 && parameters[2] >= 1 && parameters[1] * parameters[2] == size,
            "a box must have as many cells as a row");
  if (name == "binary") require(size % 2 == 0, "the size must be even");
  if (name == "futoshiki")
    require(parameters[1] <= 2 * size * (size - 1), "there are fewer pairs of neighbors than inequalities");
  if (name == "knights")
    require(parameters[1] >= 1 && parameters[1] <= 6, "the number of forms must be 1 to 6");
  if (name == "bridges")
    require(parameters[1] >= 2 && parameters[1] <= size * size,
            "the number of islands must be 2 to size * size");
  if (name == "sokoban")
    require(parameters[1] >= 3 && parameters[1] <= 8 && parameters[2] >= 1 && parameters[2] <= 36,
            "a board must have 3 to 8 columns and 1 to 36 boxes");
  return kind;
}

nb::typed<nb::list, nb::bytes> to_list(const std::vector<PuzzleBytes>& items) {
  nb::typed<nb::list, nb::bytes> result;
  for (const PuzzleBytes& bytes : items)
    result.append(nb::bytes(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  return result;
}

nb::typed<nb::list, nb::bytes> generate_puzzles(const std::string& name, const std::vector<uint64_t>& seeds,
                                                const Parameters& parameters) {
  const Kind& kind = find_kind(name, parameters);
  std::vector<PuzzleBytes> puzzles;
  {
    nb::gil_scoped_release unlocked;
    for (const uint64_t seed : seeds) puzzles.push_back(kind.generate(seed, parameters));
  }
  return to_list(puzzles);
}

nb::typed<nb::list, nb::bytes> solve_puzzle(const std::string& name, nb::bytes puzzle,
                                            const Parameters& parameters, size_t max_solutions) {
  const Kind& kind = find_kind(name, parameters);
  const auto* data = reinterpret_cast<const uint8_t*>(puzzle.c_str());
  const PuzzleBytes bytes(data, data + puzzle.size());
  Solutions solutions;
  {
    nb::gil_scoped_release unlocked;
    solutions = kind.solve(bytes, parameters, max_solutions);
  }
  return to_list(solutions);
}

}  // namespace
}  // namespace puzzles

void bind_puzzles(nb::module_& module) {
  module.def("generate_puzzles", &puzzles::generate_puzzles, nb::arg("kind"), nb::arg("seeds"),
             nb::arg("parameters"), "Generate one puzzle for each seed.");
  module.def(
      "solve_puzzle", &puzzles::solve_puzzle, nb::arg("kind"), nb::arg("puzzle"), nb::arg("parameters"),
      nb::arg("max_solutions"),
      "Return the first solutions of a puzzle. For sokoban, `max_solutions` limits the boards to search.");
}

}  // namespace phalanx
