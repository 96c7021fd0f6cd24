// `puzzle_records` and `puzzle_solutions` of `phalanx._native`: kinds by name, puzzles as bytes.
// Python knows which parameters make sense; what is checked here is what would otherwise leave an array.

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <string>

#include "puzzles/puzzles.h"

namespace nb = nanobind;

namespace phalanx::puzzles {

namespace {

struct Kind {
  Record (*make)(uint64_t, const Parameters&);
  Solutions (*solve)(const Record&, const Parameters&, size_t);
  size_t parameters;
  int most;  // of the size
};

const Kind& kind_of(const std::string& name, const Parameters& parameters) {
  static const std::map<std::string, Kind> kinds{
      {"sudoku", {make_sudoku, solve_sudoku, 4, 9}},       {"futoshiki", {make_futoshiki, solve_futoshiki, 3, 9}},
      {"binary", {make_binary, solve_binary, 2, 10}},      {"nonogram", {make_nonogram, solve_nonogram, 2, 10}},
      {"hitori", {make_hitori, solve_hitori, 2, 9}},       {"bridges", {make_bridges, solve_bridges, 2, 9}},
      {"sokoban", {make_sokoban, solve_sokoban, 7, 8}},   {"knights", {make_knights, solve_knights, 2, 6}},
  };
  const auto found = kinds.find(name);
  if (found == kinds.end()) throw std::invalid_argument("there is no native kind " + name);
  const Kind& kind = found->second;
  if (parameters.size() != kind.parameters) throw std::invalid_argument("wrong number of parameters");
  for (const int value : parameters) {
    if (value < 0) throw std::invalid_argument("parameters must not be negative");
  }
  if (parameters[0] < 3 || parameters[0] > kind.most) throw std::invalid_argument("the size is out of range");
  const int size = parameters[0];
  if (name == "sudoku" && (parameters[1] < 1 || parameters[2] < 1 || parameters[1] * parameters[2] != size)) {
    throw std::invalid_argument("boxes must have as many cells as a row");
  }
  if (name == "binary" && size % 2) throw std::invalid_argument("the size must be even");
  if (name == "futoshiki" && parameters[1] > 2 * size * (size - 1)) {
    throw std::invalid_argument("there are not so many neighbors");
  }
  if (name == "knights" && (parameters[1] < 1 || parameters[1] > 6)) {
    throw std::invalid_argument("there are six forms of statements");
  }
  if (name == "bridges" && (parameters[1] < 2 || parameters[1] > size * size)) {
    throw std::invalid_argument("there must be two islands at least, and no more than cells");
  }
  if (name == "sokoban" && (parameters[1] < 3 || parameters[1] > 8 || parameters[2] < 1 || parameters[2] > 36)) {
    throw std::invalid_argument("the columns or the boxes are out of range");
  }
  return kind;
}

nb::bytes as_bytes(const Record& record) {
  return nb::bytes(reinterpret_cast<const char*>(record.data()), record.size());
}

nb::list as_list(const Solutions& records) {
  nb::list result;
  for (const Record& record : records) result.append(as_bytes(record));
  return result;
}

nb::list puzzle_records(const std::string& name, const std::vector<uint64_t>& seeds, const Parameters& parameters) {
  const Kind& kind = kind_of(name, parameters);
  Solutions records;
  {
    nb::gil_scoped_release unlocked;
    for (const uint64_t seed : seeds) records.push_back(kind.make(seed, parameters));
  }
  return as_list(records);
}

nb::list puzzle_solutions(const std::string& name, nb::bytes puzzle, const Parameters& parameters, size_t limit) {
  const Kind& kind = kind_of(name, parameters);
  const auto* data = reinterpret_cast<const uint8_t*>(puzzle.c_str());
  const Record record(data, data + puzzle.size());
  Solutions found;
  {
    nb::gil_scoped_release unlocked;
    found = kind.solve(record, parameters, limit);
  }
  return as_list(found);
}

}  // namespace

void bind_puzzles(nb::module_& module) {
  module.def("puzzle_records", &puzzle_records, nb::arg("kind"), nb::arg("seeds"), nb::arg("parameters"),
             "One puzzle for each seed, as bytes.");
  module.def("puzzle_solutions", &puzzle_solutions, nb::arg("kind"), nb::arg("puzzle"), nb::arg("parameters"),
             nb::arg("limit"), "The first solutions of a puzzle, at most `limit`, as bytes.");
}

}  // namespace phalanx::puzzles
