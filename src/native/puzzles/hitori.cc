// Hitori: shade cells so that no number appears twice among the white cells of a row or column, no two shaded
// cells touch, and all white cells are connected. Parameters: size, maximum number of shaded cells. Bytes:
// numbers, solution (1 where a cell is shaded).

#include <cstdlib>
#include <stdexcept>
#include <vector>

#include "puzzles/latin_square.h"
#include "puzzles/puzzles.h"
#include "puzzles/search.h"

namespace phalanx::puzzles {

namespace {

// Returns whether the `required` cells are connected with each other through `open` cells.
bool connected(const std::vector<bool>& open, const std::vector<bool>& required, int size) {
  const int cells = size * size;
  int first = 0, num_missing = 0;
  for (int c = cells - 1; c >= 0; --c) {
    if (required[c]) first = c, ++num_missing;
  }
  if (!num_missing) return true;
  std::vector<bool> visited(cells);
  std::vector<int> stack{first};
  visited[first] = true;
  while (!stack.empty()) {
    const int cell = stack.back(), row = cell / size, column = cell % size;
    stack.pop_back();
    num_missing -= required[cell];
    const auto visit = [&](bool inside, int other) {
      if (!inside || visited[other] || !open[other]) return;
      visited[other] = true;
      stack.push_back(other);
    };
    visit(row > 0, cell - size);
    visit(row + 1 < size, cell + size);
    visit(column > 0, cell - 1);
    visit(column + 1 < size, cell + 1);
  }
  return num_missing == 0;
}

// Domains: bit 0 is white, bit 1 is shaded.
class Hitori {
 public:
  Hitori(const uint8_t* numbers, int size) : size_(size), duplicates_(size * size), neighbors_(size * size) {
    const int cells = size * size;
    for (int a = 0; a < cells; ++a) {
      for (int b = 0; b < cells; ++b) {
        const int rows = std::abs(a / size - b / size), columns = std::abs(a % size - b % size);
        if (rows + columns == 1) neighbors_[a].push_back(b);
        if (a != b && numbers[a] == numbers[b] && (rows == 0 || columns == 0)) duplicates_[a].push_back(b);
      }
    }
  }

  bool propagate(Domains& domains) const {
    const int cells = size_ * size_;
    bool changed = true;
    while (changed) {
      changed = false;
      for (int c = 0; c < cells; ++c) {
        if (domains[c] == 3) continue;
        // The neighbors of a shaded cell are white; cells with the number of a white cell in its row or
        // column are shaded.
        const uint16_t value = domains[c] == 2 ? 1 : 2;
        for (const int other : domains[c] == 2 ? neighbors_[c] : duplicates_[c]) {
          if (domains[other] == value) continue;
          if (!(domains[other] & value)) return false;
          domains[other] = value;
          changed = true;
        }
      }
    }
    std::vector<bool> open(cells), white(cells);
    for (int c = 0; c < cells; ++c) open[c] = domains[c] & 1, white[c] = domains[c] == 1;
    return connected(open, white, size_);
  }

  bool accepts(const Domains&) const { return true; }

 private:
  int size_;
  std::vector<std::vector<int>> duplicates_, neighbors_;
};

}  // namespace

PuzzleBytes generate_hitori(uint64_t seed, const Parameters& parameters) {
  SplitMix64 rng(seed);
  const int size = parameters.at(0), cells = size * size;
  const LatinSquare latin(size, 1, size);
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    PuzzleBytes bytes = latin.fill_random(rng);
    std::vector<bool> white(cells, true);
    int shaded = 0;
    for (const int cell : rng.permutation(cells)) {
      if (shaded == parameters.at(1)) break;
      const int row = cell / size, column = cell % size;
      if ((row > 0 && !white[cell - size]) || (row + 1 < size && !white[cell + size]) ||
          (column > 0 && !white[cell - 1]) || (column + 1 < size && !white[cell + 1])) {
        continue;
      }
      white[cell] = false;
      if (connected(white, white, size)) {
        ++shaded;
      } else {
        white[cell] = true;
      }
    }
    const PuzzleBytes square = bytes;
    for (int cell = 0; cell < cells; ++cell) {
      if (white[cell]) continue;
      // Prefer a number that is white in both the row and the column, so that there are two reasons to shade
      // the cell.
      std::vector<uint8_t> both, either;
      for (int number = 1; number <= size; ++number) {
        bool in_row = false, in_column = false;
        for (int i = 0; i < size; ++i) {
          const int across = cell / size * size + i, down = i * size + cell % size;
          in_row |= white[across] && square[across] == number;
          in_column |= white[down] && square[down] == number;
        }
        if (in_row && in_column) both.push_back(static_cast<uint8_t>(number));
        if (in_row || in_column) either.push_back(static_cast<uint8_t>(number));
      }
      const auto& choice = both.empty() ? either : both;
      bytes[cell] = choice[rng.below(static_cast<int>(choice.size()))];
    }
    const Hitori rules(bytes.data(), size);
    Search<Hitori> search(rules, cells, 2);
    search.run(all_open(3, cells));
    if (search.solutions.size() != 1) continue;
    for (int c = 0; c < cells; ++c) bytes.push_back(!white[c]);
    return bytes;
  }
  throw std::runtime_error("hitori: no puzzle with a unique solution found; shade fewer cells");
}

Solutions solve_hitori(const PuzzleBytes& puzzle, const Parameters& parameters, size_t max_solutions) {
  const int size = parameters.at(0), cells = size * size;
  if (puzzle.size() != static_cast<size_t>(cells))
    throw std::invalid_argument("hitori: the puzzle must have one byte per cell");
  return find_solutions(Hitori(puzzle.data(), size), all_open(3, cells), cells, max_solutions, 0);
}

}  // namespace phalanx::puzzles
