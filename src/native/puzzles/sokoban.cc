// Sokoban: boards of at most 8x8 as 64 bits, searched backwards from the solved boards by pulling boxes.

#include <algorithm>

#include "puzzles/puzzles.h"

namespace phalanx::puzzles {

namespace {

constexpr int kWidth = 8;
constexpr int kSteps[4] = {-kWidth, kWidth, -1, 1};  // up, down, left, right
enum Cell : uint8_t { kFloor, kWall, kGoal, kBox, kBoxOnGoal };

using Board = uint64_t;

Board bit(int cell) { return Board{1} << cell; }

// What can be walked to from `start`; the border is wall, so that rows do not run into one another.
Board reached(Board start, Board free) {
  Board all = start & free;
  while (true) {
    // Two steps for each look whether there was anything new.
    const Board near = (all | all << kWidth | all >> kWidth | all << 1 | all >> 1) & free;
    const Board next = (near | near << kWidth | near >> kWidth | near << 1 | near >> 1) & free;
    if (next == all) return all;
    all = next;
  }
}

struct Node {
  Board boxes, region;
  int parent, cell, direction, pushes;
};

struct Key {
  Board boxes;
  int player;
  bool operator==(const Key& other) const { return boxes == other.boxes && player == other.player; }
};

// Boards in the order of the pushes that solve them, until `wanted` is found, or `most` boards are.
class Backwards {
 public:
  Backwards(Board floor, Board goals, size_t most, int pushes = 1 << 30)
      : floor_(floor), most_(most), pushes_(pushes) {
    for (Board rest = floor & ~goals; rest;) {
      const Board region = reached(rest & -rest, floor & ~goals);
      add({goals, region, -1, 0, 0, 0});
      rest &= ~region;
    }
  }

  // The node of a board; -1 where it is not found.
  int run(const Key* wanted) {
    for (size_t index = 0; index < nodes.size(); ++index) {
      if (wanted != nullptr && key_of(nodes[index]) == *wanted) return static_cast<int>(index);
      if (nodes.size() >= most_ || nodes[index].pushes >= pushes_) continue;
      const Node node = nodes[index];
      for (Board rest = node.boxes; rest; rest &= rest - 1) {
        const int box = __builtin_ctzll(rest);
        for (int d = 0; d < 4; ++d) {
          // Whoever pushed it here stood where it was pushed from, and one step further before.
          const int from = box - kSteps[d], behind = from - kSteps[d];
          if (!(node.region & bit(from))) continue;
          if (!(floor_ & ~node.boxes & bit(behind))) continue;
          const Board boxes = (node.boxes & ~bit(box)) | bit(from);
          add({boxes, reached(bit(behind), floor_ & ~boxes), static_cast<int>(index), from, d, node.pushes + 1});
        }
      }
    }
    return -1;
  }

  static Key key_of(const Node& node) { return {node.boxes, __builtin_ctzll(node.region)}; }

  // The moves of a player who walks to each push by a shortest way.
  Record moves_from(int index, int player) const {
    Record moves;
    for (; nodes[index].parent >= 0; index = nodes[index].parent) {
      const Node& node = nodes[index];
      walk(player, node.cell - kSteps[node.direction], floor_ & ~node.boxes, moves);
      moves.push_back(static_cast<uint8_t>(node.direction));
      player = node.cell;
    }
    return moves;
  }

  std::vector<Node> nodes;

 private:
  static void walk(int from, int to, Board free, Record& moves) {
    std::array<uint8_t, 64> came, queue;
    int head = 0, tail = 0;
    queue[tail++] = static_cast<uint8_t>(from);
    Board open = free & ~bit(from);
    while (queue[head] != to) {
      const int cell = queue[head++];
      for (int d = 0; d < 4; ++d) {
        const int ahead = cell + kSteps[d];
        if (!(open & bit(ahead))) continue;
        open &= ~bit(ahead);
        came[ahead] = static_cast<uint8_t>(d);
        queue[tail++] = static_cast<uint8_t>(ahead);
      }
    }
    const size_t start = moves.size();
    for (int cell = to; cell != from; cell -= kSteps[came[cell]]) moves.push_back(came[cell]);
    std::reverse(moves.begin() + start, moves.end());
  }

  void add(const Node& node) {
    if (2 * nodes.size() >= places_.size()) grow();
    int32_t& place = place_of(key_of(node));
    if (place >= 0) return;
    place = static_cast<int32_t>(nodes.size());
    nodes.push_back(node);
  }

  // Where a board's number is kept, or where it would be: an open table, which allocates nothing for a board.
  int32_t& place_of(const Key& key) {
    const size_t mask = places_.size() - 1;
    size_t at = (key.boxes ^ (static_cast<uint64_t>(key.player) << 57)) * 0x9E3779B97F4A7C15ull >> 32 & mask;
    while (places_[at] >= 0 && !(key_of(nodes[places_[at]]) == key)) at = (at + 1) & mask;
    return places_[at];
  }

  void grow() {
    places_.assign(std::max<size_t>(1024, 4 * places_.size()), -1);
    for (size_t i = 0; i < nodes.size(); ++i) place_of(key_of(nodes[i])) = static_cast<int32_t>(i);
  }

  Board floor_;
  size_t most_;
  int pushes_;
  std::vector<int32_t> places_;
};

}  // namespace

// Parameters: rows, columns, boxes, walls inside in per cent, pushes at least and at most, boards to look at.
// Record: 64 cells, the player, then the moves that solve it.
Record make_sokoban(uint64_t seed, const Parameters& parameters) {
  Draws draws(seed);
  const int rows = parameters.at(0), columns = parameters.at(1), boxes = parameters.at(2);
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    Board floor = 0;
    for (int row = 1; row < rows - 1; ++row) {
      for (int column = 1; column < columns - 1; ++column) {
        if (draws.below(100) >= parameters.at(3)) floor |= bit(row * kWidth + column);
      }
    }
    floor = reached(floor & -floor, floor);
    std::vector<int> cells;
    for (Board rest = floor; rest; rest &= rest - 1) cells.push_back(__builtin_ctzll(rest));
    if (static_cast<int>(cells.size()) < 2 * boxes + 6) continue;
    draws.shuffle(cells, static_cast<int>(cells.size()));
    Board goals = 0;
    for (int i = 0; i < boxes; ++i) goals |= bit(cells[i]);
    Backwards search(floor, goals, parameters.at(6), parameters.at(5));
    search.run(nullptr);
    const int pushes = search.nodes.back().pushes;
    if (pushes < parameters.at(4)) continue;
    std::vector<int> chosen;
    for (size_t i = 0; i < search.nodes.size(); ++i) {
      if (search.nodes[i].pushes == pushes) chosen.push_back(static_cast<int>(i));
    }
    const int index = chosen[draws.below(static_cast<int>(chosen.size()))];
    const Node& node = search.nodes[index];
    int skipped = draws.below(__builtin_popcountll(node.region));
    Board region = node.region;
    while (skipped-- > 0) region &= region - 1;
    Record record(65, kWall);
    for (const int cell : cells) {
      const bool box = node.boxes & bit(cell), goal = goals & bit(cell);
      record[cell] = box ? (goal ? kBoxOnGoal : kBox) : goal ? kGoal : kFloor;
    }
    record[64] = static_cast<uint8_t>(__builtin_ctzll(region));
    const Record moves = search.moves_from(index, record[64]);
    record.insert(record.end(), moves.begin(), moves.end());
    return record;
  }
  throw std::runtime_error("no sokoban board of this kind was found");
}

// The puzzle: 64 cells and the player. `limit` is how many boards to look at; the answer is one or none.
Solutions solve_sokoban(const Record& puzzle, const Parameters&, size_t limit) {
  if (puzzle.size() != 65 || puzzle[64] >= 64) throw std::invalid_argument("not a board of it");
  Board floor = 0, goals = 0, boxes = 0;
  for (int cell = 0; cell < 64; ++cell) {
    const uint8_t kind = puzzle[cell];
    if (kind != kWall) floor |= bit(cell);
    if (kind == kGoal || kind == kBoxOnGoal) goals |= bit(cell);
    if (kind == kBox || kind == kBoxOnGoal) boxes |= bit(cell);
  }
  constexpr Board border = 0xFF818181818181FFull;
  if ((floor & border) || !(floor & ~boxes & bit(puzzle[64]))) throw std::invalid_argument("not a board of it");
  const Board region = reached(bit(puzzle[64]), floor & ~boxes);
  const Key wanted{boxes, __builtin_ctzll(region)};
  Backwards search(floor, goals, limit);
  const int index = search.run(&wanted);
  if (index < 0) return {};
  return {search.moves_from(index, puzzle[64])};
}

}  // namespace phalanx::puzzles
