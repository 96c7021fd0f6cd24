// Sudoku and futoshiki: Latin squares with boxes, or with signs between neighbors.

#include "puzzles/puzzles.h"

namespace phalanx::puzzles {

Latin::Latin(int size, int box_rows, int box_columns)
    : all(static_cast<uint16_t>((1u << size) - 1)), size(size), cells(size * size), groups_of_(size * size) {
  for (int i = 0; i < size; ++i) {
    std::vector<int> row, column;
    for (int j = 0; j < size; ++j) {
      row.push_back(i * size + j);
      column.push_back(j * size + i);
    }
    groups_.push_back(row);
    groups_.push_back(column);
  }
  for (int top = 0; box_rows > 1 && top < size; top += box_rows) {
    for (int left = 0; left < size; left += box_columns) {
      std::vector<int> box;
      for (int k = 0; k < size; ++k) box.push_back((top + k / box_columns) * size + left + k % box_columns);
      groups_.push_back(box);
    }
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (int cell : groups_[g]) groups_of_[cell] |= 1u << g;
  }
}

bool Latin::propagate(Domains& domains) const {
  uint32_t dirty = groups_.size() == 32 ? ~0u : (1u << groups_.size()) - 1;
  while (true) {
    while (dirty) {
      const int g = __builtin_ctz(dirty);
      dirty &= dirty - 1;
      uint16_t once = 0, twice = 0, fixed = 0;
      for (int cell : groups_[g]) {
        const uint16_t mask = domains[cell];
        if (is_single(mask)) {
          if (mask == 0 || (fixed & mask)) return false;
          fixed |= mask;
        }
        twice |= once & mask;
        once |= mask;
      }
      if (once != all) return false;
      const uint16_t hidden = once & ~twice & ~fixed;
      if (fixed == all) continue;
      for (int cell : groups_[g]) {
        const uint16_t mask = domains[cell];
        if (is_single(mask)) continue;
        uint16_t next = mask & ~fixed;
        if (next & hidden) {
          next &= hidden;
          if (!is_single(next)) return false;
        }
        if (next == 0) return false;
        if (next != mask) {
          domains[cell] = next;
          dirty |= groups_of_[cell];
        }
      }
    }
    for (const auto& [small, large] : less) {
      if (domains[small] == 0 || domains[large] == 0) return false;
      const uint16_t below = domains[small] & ((1u << highest(domains[large])) - 1);
      if (below != domains[small]) domains[small] = below, dirty |= groups_of_[small];
      if (below == 0) return false;
      const uint16_t above = domains[large] & ~((2u << lowest(below)) - 1);
      if (above != domains[large]) domains[large] = above, dirty |= groups_of_[large];
      if (above == 0) return false;
    }
    if (!dirty) return true;
  }
}

Record Latin::filled(Draws& draws) const {
  Domains domains{};
  for (int c = 0; c < cells; ++c) domains[c] = all;
  Search<Latin> search(*this, cells, 1, &draws);
  search.run(domains);
  Record values(cells);
  for (int c = 0; c < cells; ++c) values[c] = static_cast<uint8_t>(lowest(search.found.at(0)[c]) + 1);
  return values;
}

Domains Latin::domains_of(const uint8_t* given) const {
  Domains domains{};
  for (int c = 0; c < cells; ++c) {
    if (given[c] > size) throw std::invalid_argument("a value is larger than the square");
    domains[c] = given[c] ? static_cast<uint16_t>(1u << (given[c] - 1)) : all;
  }
  return domains;
}

// Parameters: size, rows and columns of a box, blanks. Record: givens, solution.
Record make_sudoku(uint64_t seed, const Parameters& parameters) {
  Draws draws(seed);
  const Latin rules(parameters.at(0), parameters.at(1), parameters.at(2));
  const Record solution = rules.filled(draws);
  Record record = with_blanks(rules, solution, rules.all, parameters.at(3), draws);
  record.insert(record.end(), solution.begin(), solution.end());
  return record;
}

// Parameters: size, signs, blanks. Record: givens, solution, pairs of cells of which the first is smaller.
Record make_futoshiki(uint64_t seed, const Parameters& parameters) {
  Draws draws(seed);
  const int size = parameters.at(0);
  Latin rules(size, 1, size);
  const Record solution = rules.filled(draws);
  std::vector<std::pair<int, int>> pairs;
  for (int cell = 0; cell < rules.cells; ++cell) {
    if (cell % size + 1 < size) pairs.emplace_back(cell, cell + 1);
    if (cell + size < rules.cells) pairs.emplace_back(cell, cell + size);
  }
  draws.shuffle(pairs, static_cast<int>(pairs.size()));
  pairs.resize(parameters.at(1));
  for (auto& pair : pairs) {
    if (solution[pair.first] > solution[pair.second]) std::swap(pair.first, pair.second);
  }
  rules.less = pairs;
  Record record = with_blanks(rules, solution, rules.all, parameters.at(2), draws);
  record.insert(record.end(), solution.begin(), solution.end());
  for (const auto& [small, large] : pairs) {
    record.push_back(static_cast<uint8_t>(small));
    record.push_back(static_cast<uint8_t>(large));
  }
  return record;
}

Solutions solve_sudoku(const Record& puzzle, const Parameters& parameters, size_t limit) {
  const Latin rules(parameters.at(0), parameters.at(1), parameters.at(2));
  if (puzzle.size() != static_cast<size_t>(rules.cells)) throw std::invalid_argument("not the givens of it");
  return solutions_of(rules, rules.domains_of(puzzle.data()), rules.cells, limit, 1);
}

// The puzzle: givens, then the pairs.
Solutions solve_futoshiki(const Record& puzzle, const Parameters& parameters, size_t limit) {
  Latin rules(parameters.at(0), 1, parameters.at(0));
  const size_t cells = static_cast<size_t>(rules.cells);
  if (puzzle.size() < cells || (puzzle.size() - cells) % 2) throw std::invalid_argument("not the givens of it");
  for (size_t i = cells; i < puzzle.size(); i += 2) {
    if (puzzle[i] >= cells || puzzle[i + 1] >= cells) throw std::invalid_argument("a sign is not on the board");
    rules.less.emplace_back(puzzle[i], puzzle[i + 1]);
  }
  return solutions_of(rules, rules.domains_of(puzzle.data()), rules.cells, limit, 1);
}

}  // namespace phalanx::puzzles
