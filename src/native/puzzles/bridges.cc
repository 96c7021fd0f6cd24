// Bridges (hashiwokakero): connect all islands with horizontal and vertical bridges that do not cross, one or
// two between the same islands, so that every island has as many as its number says. Parameters: size, number
// of islands. Bytes: numbers (0 is water), then the number of bridges on each edge in the order of
// `edges_of`.

#include <algorithm>
#include <array>
#include <numeric>
#include <stdexcept>
#include <utility>
#include <vector>

#include "puzzles/puzzles.h"
#include "puzzles/search.h"

namespace phalanx::puzzles {

namespace {

struct Edge {
  int from, to;
  bool down;
};

// Returns the pairs of islands that a bridge can connect: to the right and down from each island, in cell
// order.
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

// Variables are edges. Domains: bit k is k bridges.
class Bridges {
 public:
  Bridges(const uint8_t* numbers, int size) : edges(edges_of(numbers, size)), edges_at_(size * size) {
    for (int cell = 0; cell < size * size; ++cell) {
      if (numbers[cell]) islands_.push_back(cell);
    }
    for (size_t e = 0; e < edges.size(); ++e) {
      edges_at_[edges[e].from].push_back(static_cast<int>(e));
      edges_at_[edges[e].to].push_back(static_cast<int>(e));
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
        int min_total = 0, max_total = 0;
        for (const int e : edges_at_[island])
          min_total += lowest(domains[e]), max_total += highest(domains[e]);
        const int target = numbers_[island];
        if (min_total > target || max_total < target) return false;
        for (const int e : edges_at_[island]) {
          const int low = lowest(domains[e]), high = highest(domains[e]);
          uint16_t next = 0;
          for (int k = 0; k < 3; ++k) {
            if (min_total - low + k <= target && max_total - high + k >= target) next |= 1u << k;
          }
          next &= domains[e];
          if (!next) return false;
          if (next == domains[e]) continue;
          min_total += lowest(next) - low, max_total += highest(next) - high;
          domains[e] = next;
          changed = true;
        }
      }
      for (const auto& [a, b] : crossings_) {
        for (const auto& [first, second] : {std::pair(a, b), std::pair(b, a)}) {
          if ((domains[first] & 1) || domains[second] == 1) continue;
          if (!(domains[second] & 1)) return false;
          domains[second] = 1;
          changed = true;
        }
      }
    }
    return is_connected(domains);
  }

  bool accepts(const Domains& domains) const { return is_connected(domains); }

  const std::vector<Edge> edges;

 private:
  // Returns whether the bridges that are still possible connect all islands.
  bool is_connected(const Domains& domains) const {
    std::vector<int> root(edges_at_.size());
    std::iota(root.begin(), root.end(), 0);
    const auto find = [&](int cell) {
      while (root[cell] != cell) cell = root[cell] = root[root[cell]];
      return cell;
    };
    size_t num_components = islands_.size();
    for (size_t e = 0; e < edges.size(); ++e) {
      if (domains[e] == 1) continue;
      const int a = find(edges[e].from), b = find(edges[e].to);
      if (a != b) root[a] = b, --num_components;
    }
    return num_components == 1;
  }

  std::vector<int> islands_;
  std::vector<std::vector<int>> edges_at_;
  std::vector<std::pair<int, int>> crossings_;
  std::vector<uint8_t> numbers_;
};

}  // namespace

PuzzleBytes generate_bridges(uint64_t seed, const Parameters& parameters) {
  SplitMix64 rng(seed);
  const int size = parameters.at(0), cells = size * size, islands = parameters.at(1);
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    PuzzleBytes numbers(cells, 0);
    std::vector<bool> has_bridge(cells);
    std::vector<int> islands_placed{rng.below(cells)};
    std::vector<std::array<int, 3>> bridges;
    std::vector<bool> island(cells);
    island[islands_placed[0]] = true;
    const auto build = [&](int from, int to, int count) {
      const int step = from / size == to / size ? 1 : size;
      for (int c = std::min(from, to) + step; c < std::max(from, to); c += step) has_bridge[c] = true;
      numbers[from] += count;
      numbers[to] += count;
      bridges.push_back({std::min(from, to), std::max(from, to), count});
    };
    for (int trial = 0; trial < 40 * islands && static_cast<int>(islands_placed.size()) < islands; ++trial) {
      const int from = islands_placed[rng.below(static_cast<int>(islands_placed.size()))];
      const int direction = rng.below(4), length = 2 + rng.below(size - 2), count = 1 + rng.below(2);
      const int rows = direction == 0 ? -1 : direction == 1, columns = direction == 2 ? -1 : direction == 3;
      const int row = from / size + rows * length, column = from % size + columns * length;
      if (row < 0 || row >= size || column < 0 || column >= size) continue;
      const int to = row * size + column;
      bool is_free = true;
      for (int k = 1; k <= length; ++k) {
        const int c = from + k * (rows * size + columns);
        is_free = is_free && !has_bridge[c] && !island[c];
      }
      is_free = is_free && !(row > 0 && island[to - size]) && !(row + 1 < size && island[to + size]) &&
                !(column > 0 && island[to - 1]) && !(column + 1 < size && island[to + 1]);
      if (!is_free) continue;
      island[to] = true;
      islands_placed.push_back(to);
      build(from, to, count);
    }
    if (static_cast<int>(islands_placed.size()) < islands) continue;
    // Add bridges between islands that are connected already; otherwise, every puzzle would be a tree.
    for (const Edge& edge : edges_of(numbers.data(), size)) {
      const int chance = rng.below(4), count = 1 + rng.below(2), step = edge.down ? size : 1;
      bool is_free = chance == 0;
      for (int c = edge.from + step; c < edge.to; c += step) is_free = is_free && !has_bridge[c];
      if (is_free) build(edge.from, edge.to, count);
    }
    const Bridges rules(numbers.data(), size);
    const int variables = static_cast<int>(rules.edges.size());
    Search<Bridges> search(rules, variables, 2);
    search.run(all_open(7, variables));
    if (search.solutions.size() != 1) continue;
    PuzzleBytes bytes = numbers;
    for (const Edge& edge : rules.edges) {
      uint8_t count_on_edge = 0;
      for (const auto& [from, to, count] : bridges) {
        if (from == edge.from && to == edge.to) count_on_edge = static_cast<uint8_t>(count);
      }
      bytes.push_back(count_on_edge);
    }
    return bytes;
  }
  throw std::runtime_error("bridges: no puzzle with a unique solution found; use fewer islands");
}

Solutions solve_bridges(const PuzzleBytes& puzzle, const Parameters& parameters, size_t max_solutions) {
  const int size = parameters.at(0);
  if (puzzle.size() != static_cast<size_t>(size * size))
    throw std::invalid_argument("bridges: the puzzle must have one byte per cell");
  const Bridges rules(puzzle.data(), size);
  const int variables = static_cast<int>(rules.edges.size());
  return find_solutions(rules, all_open(7, variables), variables, max_solutions, 0);
}

}  // namespace phalanx::puzzles
