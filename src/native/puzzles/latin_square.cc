#include "puzzles/latin_square.h"

#include <stdexcept>

namespace phalanx::puzzles {

LatinSquare::LatinSquare(int size, int box_rows, int box_columns)
    : all_values(static_cast<uint16_t>((1u << size) - 1)),
      size(size),
      cells(size * size),
      groups_of_(size * size) {
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

bool LatinSquare::propagate(Domains& domains) const {
  uint32_t dirty = groups_.size() == 32 ? ~0u : (1u << groups_.size()) - 1;
  while (true) {
    while (dirty) {
      const int g = __builtin_ctz(dirty);
      dirty &= dirty - 1;
      uint16_t seen = 0, repeated = 0, assigned = 0;
      for (int cell : groups_[g]) {
        const uint16_t mask = domains[cell];
        if (is_single(mask)) {
          if (mask == 0 || (assigned & mask)) return false;
          assigned |= mask;
        }
        repeated |= seen & mask;
        seen |= mask;
      }
      if (seen != all_values) return false;
      const uint16_t unique = seen & ~repeated & ~assigned;
      if (assigned == all_values) continue;
      for (int cell : groups_[g]) {
        const uint16_t mask = domains[cell];
        if (is_single(mask)) continue;
        uint16_t next = mask & ~assigned;
        if (next & unique) {
          next &= unique;
          if (!is_single(next)) return false;
        }
        if (next == 0) return false;
        if (next != mask) {
          domains[cell] = next;
          dirty |= groups_of_[cell];
        }
      }
    }
    for (const auto& [smaller, larger] : inequalities) {
      if (domains[smaller] == 0 || domains[larger] == 0) return false;
      const uint16_t below = domains[smaller] & ((1u << highest(domains[larger])) - 1);
      if (below != domains[smaller]) domains[smaller] = below, dirty |= groups_of_[smaller];
      if (below == 0) return false;
      const uint16_t above = domains[larger] & ~((2u << lowest(below)) - 1);
      if (above != domains[larger]) domains[larger] = above, dirty |= groups_of_[larger];
      if (above == 0) return false;
    }
    if (!dirty) return true;
  }
}

PuzzleBytes LatinSquare::fill_random(SplitMix64& rng) const {
  Domains domains{};
  for (int c = 0; c < cells; ++c) domains[c] = all_values;
  Search<LatinSquare> search(*this, cells, 1, &rng);
  search.run(domains);
  PuzzleBytes values(cells);
  for (int c = 0; c < cells; ++c) values[c] = static_cast<uint8_t>(lowest(search.solutions.at(0)[c]) + 1);
  return values;
}

Domains LatinSquare::clue_domains(const uint8_t* clues) const {
  Domains domains{};
  for (int c = 0; c < cells; ++c) {
    if (clues[c] > size) throw std::invalid_argument("a clue is larger than the size of the grid");
    domains[c] = clues[c] ? static_cast<uint16_t>(1u << (clues[c] - 1)) : all_values;
  }
  return domains;
}

}  // namespace phalanx::puzzles
