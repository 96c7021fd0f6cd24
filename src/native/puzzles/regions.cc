// Hitori and bridges: puzzles whose answer must hang together.

#include <numeric>

#include "puzzles/puzzles.h"

namespace phalanx::puzzles {

namespace {

// Whether the cells of `open` that `wanted` names can all be reached from one another through `open`.
bool connected(const std::vector<bool>& open, const std::vector<bool>& wanted, int size) {
  const int cells = size * size;
  int first = 0, missing = 0;
  for (int c = cells - 1; c >= 0; --c) {
    if (wanted[c]) first = c, ++missing;
  }
  if (!missing) return true;
  std::vector<bool> seen(cells);
  std::vector<int> stack{first};
  seen[first] = true;
  while (!stack.empty()) {
    const int cell = stack.back(), row = cell / size, column = cell % size;
    stack.pop_back();
    missing -= wanted[cell];
    const auto visit = [&](bool inside, int other) {
      if (!inside || seen[other] || !open[other]) return;
      seen[other] = true;
      stack.push_back(other);
    };
    visit(row > 0, cell - size);
    visit(row + 1 < size, cell + size);
    visit(column > 0, cell - 1);
    visit(column + 1 < size, cell + 1);
  }
  return missing == 0;
}

// Domains: 1 is white, 2 is shaded.
class Hitori {
 public:
  Hitori(const uint8_t* numbers, int size) : size_(size), alike_(size * size), near_(size * size) {
    const int cells = size * size;
    for (int a = 0; a < cells; ++a) {
      for (int b = 0; b < cells; ++b) {
        const int rows = std::abs(a / size - b / size), columns = std::abs(a % size - b % size);
        if (rows + columns == 1) near_[a].push_back(b);
        if (a != b && numbers[a] == numbers[b] && (rows == 0 || columns == 0)) alike_[a].push_back(b);
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
        // Beside a shaded cell all are white; what equals a white cell in its line is shaded.
        const uint16_t value = domains[c] == 2 ? 1 : 2;
        for (const int other : domains[c] == 2 ? near_[c] : alike_[c]) {
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
  std::vector<std::vector<int>> alike_, near_;
};

struct Edge {
  int from, to;
  bool down;
};

// Between islands that see each other: to the right and down from each, in the order of the cells.
std::vector<Edge> edges_of(const uint8_t* numbers, int size) {
  std::vector<Edge> edges;
  for (int cell = 0; cell < size * size; ++cell) {
    if (!numbers[cell]) continue;
    for (int c = cell + 1; c < (cell / size + 1) * size; ++c) {
      if (numbers[c]) {
        edges.push_back({cell, c, false});
        break;
      }
    }
    for (int c = cell + size; c < size * size; c += size) {
      if (numbers[c]) {
        edges.push_back({cell, c, true});
        break;
      }
    }
  }
  return edges;
}

bool cross(const Edge& across, const Edge& down, int size) {
  const int row = across.from / size, column = down.from % size;
  return !across.down && down.down && down.from / size < row && row < down.to / size &&
         across.from % size < column && column < across.to % size;
}

// Domains: bits of 0, 1 and 2 bridges on each edge.
class Bridges {
 public:
  Bridges(const uint8_t* numbers, int size) : edges(edges_of(numbers, size)), at_(size * size) {
    for (int cell = 0; cell < size * size; ++cell) {
      if (numbers[cell]) islands_.push_back(cell);
    }
    for (size_t e = 0; e < edges.size(); ++e) {
      at_[edges[e].from].push_back(static_cast<int>(e));
      at_[edges[e].to].push_back(static_cast<int>(e));
      for (size_t f = 0; f < edges.size(); ++f) {
        if (cross(edges[e], edges[f], size)) crossings_.emplace_back(e, f);
      }
    }
    numbers_.assign(numbers, numbers + size * size);
  }

  bool propagate(Domains& domains) const {
    bool changed = true;
    while (changed) {
      changed = false;
      for (const int island : islands_) {
        int least = 0, most = 0;
        for (const int e : at_[island]) least += lowest(domains[e]), most += highest(domains[e]);
        const int wanted = numbers_[island];
        if (least > wanted || most < wanted) return false;
        for (const int e : at_[island]) {
          const int low = lowest(domains[e]), high = highest(domains[e]);
          uint16_t next = 0;
          for (int k = 0; k < 3; ++k) {
            if (least - low + k <= wanted && most - high + k >= wanted) next |= 1u << k;
          }
          next &= domains[e];
          if (!next) return false;
          if (next == domains[e]) continue;
          least += lowest(next) - low, most += highest(next) - high;
          domains[e] = next;
          changed = true;
        }
      }
      for (const auto& [a, b] : crossings_) {
        for (const auto& [one, other] : {std::pair(a, b), std::pair(b, a)}) {
          if ((domains[one] & 1) || domains[other] == 1) continue;
          if (!(domains[other] & 1)) return false;
          domains[other] = 1;
          changed = true;
        }
      }
    }
    return joined(domains);
  }

  bool accepts(const Domains& domains) const { return joined(domains); }

  const std::vector<Edge> edges;

 private:
  // Whether bridges that can still be built join all islands.
  bool joined(const Domains& domains) const {
    std::vector<int> root(at_.size());
    std::iota(root.begin(), root.end(), 0);
    const auto find = [&](int cell) {
      while (root[cell] != cell) cell = root[cell] = root[root[cell]];
      return cell;
    };
    size_t parts = islands_.size();
    for (size_t e = 0; e < edges.size(); ++e) {
      if (domains[e] == 1) continue;
      const int a = find(edges[e].from), b = find(edges[e].to);
      if (a != b) root[a] = b, --parts;
    }
    return parts == 1;
  }

  std::vector<int> islands_;
  std::vector<std::vector<int>> at_;
  std::vector<std::pair<int, int>> crossings_;
  std::vector<uint8_t> numbers_;
};

Domains open_to(uint16_t mask, size_t variables) {
  Domains domains{};
  for (size_t v = 0; v < variables && v < domains.size(); ++v) domains[v] = mask;
  return domains;
}

}  // namespace

// Parameters: size, shaded cells at most. Record: numbers, solution (1 where shaded).
Record make_hitori(uint64_t seed, const Parameters& parameters) {
  Draws draws(seed);
  const int size = parameters.at(0), cells = size * size;
  const Latin latin(size, 1, size);
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    Record record = latin.filled(draws);
    std::vector<bool> white(cells, true);
    int shaded = 0;
    for (const int cell : draws.order(cells)) {
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
    const Record square = record;
    for (int cell = 0; cell < cells; ++cell) {
      if (white[cell]) continue;
      // A number that is white in its row and in its column, else in one of them: two reasons to shade it.
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
      record[cell] = choice[draws.below(static_cast<int>(choice.size()))];
    }
    const Hitori rules(record.data(), size);
    Search<Hitori> search(rules, cells, 2);
    search.run(open_to(3, cells));
    if (search.found.size() != 1) continue;
    for (int c = 0; c < cells; ++c) record.push_back(!white[c]);
    return record;
  }
  throw std::runtime_error("no hitori with one solution was found");
}

Solutions solve_hitori(const Record& puzzle, const Parameters& parameters, size_t limit) {
  const int size = parameters.at(0), cells = size * size;
  if (puzzle.size() != static_cast<size_t>(cells)) throw std::invalid_argument("not the numbers of it");
  return solutions_of(Hitori(puzzle.data(), size), open_to(3, cells), cells, limit, 0);
}

// Parameters: size, islands. Record: numbers (0 is water), bridges on each edge.
Record make_bridges(uint64_t seed, const Parameters& parameters) {
  Draws draws(seed);
  const int size = parameters.at(0), cells = size * size, islands = parameters.at(1);
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    Record numbers(cells, 0);
    std::vector<bool> taken(cells);  // by bridges
    std::vector<int> places{draws.below(cells)};
    std::vector<std::array<int, 3>> built;
    std::vector<bool> island(cells);
    island[places[0]] = true;
    const auto build = [&](int from, int to, int count) {
      const int step = from / size == to / size ? 1 : size;
      for (int c = std::min(from, to) + step; c < std::max(from, to); c += step) taken[c] = true;
      numbers[from] += count;
      numbers[to] += count;
      built.push_back({std::min(from, to), std::max(from, to), count});
    };
    for (int trial = 0; trial < 40 * islands && static_cast<int>(places.size()) < islands; ++trial) {
      const int from = places[draws.below(static_cast<int>(places.size()))];
      const int direction = draws.below(4), length = 2 + draws.below(size - 2), count = 1 + draws.below(2);
      const int rows = direction == 0 ? -1 : direction == 1, columns = direction == 2 ? -1 : direction == 3;
      const int row = from / size + rows * length, column = from % size + columns * length;
      if (row < 0 || row >= size || column < 0 || column >= size) continue;
      const int to = row * size + column;
      bool free = true;
      for (int k = 1; k <= length; ++k) {
        const int c = from + k * (rows * size + columns);
        free = free && !taken[c] && !island[c];
      }
      free = free && !(row > 0 && island[to - size]) && !(row + 1 < size && island[to + size]) &&
             !(column > 0 && island[to - 1]) && !(column + 1 < size && island[to + 1]);
      if (!free) continue;
      island[to] = true;
      places.push_back(to);
      build(from, to, count);
    }
    if (static_cast<int>(places.size()) < islands) continue;
    // Some more bridges, so that not every puzzle is a tree.
    for (const Edge& edge : edges_of(numbers.data(), size)) {
      const int chance = draws.below(4), count = 1 + draws.below(2), step = edge.down ? size : 1;
      bool free = chance == 0;
      for (int c = edge.from + step; c < edge.to; c += step) free = free && !taken[c];
      if (free) build(edge.from, edge.to, count);
    }
    const Bridges rules(numbers.data(), size);
    const int variables = static_cast<int>(rules.edges.size());
    Search<Bridges> search(rules, variables, 2);
    search.run(open_to(7, variables));
    if (search.found.size() != 1) continue;
    Record record = numbers;
    for (const Edge& edge : rules.edges) {
      uint8_t bridges = 0;
      for (const auto& [from, to, count] : built) {
        if (from == edge.from && to == edge.to) bridges = static_cast<uint8_t>(count);
      }
      record.push_back(bridges);
    }
    return record;
  }
  throw std::runtime_error("no bridges with one solution were found");
}

Solutions solve_bridges(const Record& puzzle, const Parameters& parameters, size_t limit) {
  const int size = parameters.at(0);
  if (puzzle.size() != static_cast<size_t>(size * size)) throw std::invalid_argument("not the numbers of it");
  const Bridges rules(puzzle.data(), size);
  const int variables = static_cast<int>(rules.edges.size());
  return solutions_of(rules, open_to(7, variables), variables, limit, 0);
}

}  // namespace phalanx::puzzles
