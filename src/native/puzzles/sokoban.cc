// Sokoban on boards of at most 8x8 cells, as sets of 64 bits. Boards are searched backward from the solved
// ones by pulling boxes. Parameters: rows, columns, boxes, percentage of inner walls, minimum and maximum
// number of pushes, maximum number of boards to search. Bytes: 64 cells, cell of the player, moves of a
// solution.

#include <algorithm>
#include <array>
#include <stdexcept>
#include <vector>

#include "common/random.h"
#include "puzzles/puzzles.h"

namespace phalanx::puzzles {

namespace {

constexpr int kWidth = 8;
constexpr int kSteps[4] = {-kWidth, kWidth, -1, 1};  // up, down, left, right
enum Cell : uint8_t { kFloor, kWall, kGoal, kBox, kBoxOnGoal };

using Board = uint64_t;

Board bit(int cell) { return Board{1} << cell; }

// Returns the cells that the player can reach. The border is all walls, so steps cannot wrap around a row.
Board reachable(Board start, Board free) {
  Board region = start & free;
  while (true) {
    // Two steps per iteration, which halves the number of comparisons.
    const Board one_step = (region | region << kWidth | region >> kWidth | region << 1 | region >> 1) & free;
    const Board next =
        (one_step | one_step << kWidth | one_step >> kWidth | one_step << 1 | one_step >> 1) & free;
    if (next == region) return region;
    region = next;
  }
}

// A board up to moves of the player: `region` is where the player can be. `cell` and `direction` are the push
// that leads to the board of `parent`.
struct Node {
  Board boxes, region;
  int parent, cell, direction, pushes;
};

struct Key {
  Board boxes;
  int player;
  bool operator==(const Key& other) const { return boxes == other.boxes && player == other.player; }
};

// Breadth-first search: boards in the order of the number of pushes that solve them.
class BackwardSearch {
 public:
  BackwardSearch(Board floor, Board goals, size_t max_boards, int pushes = 1 << 30)
      : floor_(floor), max_boards_(max_boards), max_pushes_(pushes) {
    for (Board rest = floor & ~goals; rest;) {
      const Board region = reachable(rest & -rest, floor & ~goals);
      add({goals, region, -1, 0, 0, 0});
      rest &= ~region;
    }
  }

  // Returns the index of the node of the target board, or -1 if it is not found within the limits.
  int run(const Key* target) {
    for (size_t index = 0; index < nodes.size(); ++index) {
      if (target != nullptr && key_of(nodes[index]) == *target) return static_cast<int>(index);
      if (nodes.size() >= max_boards_ || nodes[index].pushes >= max_pushes_) continue;
      const Node node = nodes[index];
      for (Board rest = node.boxes; rest; rest &= rest - 1) {
        const int box = __builtin_ctzll(rest);
        for (int d = 0; d < 4; ++d) {
          // The player who pushed the box to its cell stood at `from` afterwards and at `behind` before.
          const int from = box - kSteps[d], behind = from - kSteps[d];
          if (!(node.region & bit(from))) continue;
          if (!(floor_ & ~node.boxes & bit(behind))) continue;
          const Board boxes = (node.boxes & ~bit(box)) | bit(from);
          add({boxes, reachable(bit(behind), floor_ & ~boxes), static_cast<int>(index), from, d,
               node.pushes + 1});
        }
      }
    }
    return -1;
  }

  static Key key_of(const Node& node) { return {node.boxes, __builtin_ctzll(node.region)}; }

  // Returns the moves of a player who takes a shortest path to each push.
  PuzzleBytes moves_to_solve(int index, int player) const {
    PuzzleBytes moves;
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
  static void walk(int from, int to, Board free, PuzzleBytes& moves) {
    std::array<uint8_t, 64> arrival_direction, queue;
    int head = 0, tail = 0;
    queue[tail++] = static_cast<uint8_t>(from);
    Board open = free & ~bit(from);
    while (queue[head] != to) {
      const int cell = queue[head++];
      for (int d = 0; d < 4; ++d) {
        const int ahead = cell + kSteps[d];
        if (!(open & bit(ahead))) continue;
        open &= ~bit(ahead);
        arrival_direction[ahead] = static_cast<uint8_t>(d);
        queue[tail++] = static_cast<uint8_t>(ahead);
      }
    }
    const size_t start = moves.size();
    for (int cell = to; cell != from; cell -= kSteps[arrival_direction[cell]])
      moves.push_back(arrival_direction[cell]);
    std::reverse(moves.begin() + start, moves.end());
  }

  void add(const Node& node) {
    if (2 * nodes.size() >= slots_.size()) grow();
    int32_t& slot = find_slot(key_of(node));
    if (slot >= 0) return;
    slot = static_cast<int32_t>(nodes.size());
    nodes.push_back(node);
  }

  // Returns the entry of a board in the hash table (open addressing, so that boards need no allocation), or
  // the free entry where it belongs.
  int32_t& find_slot(const Key& key) {
    const size_t mask = slots_.size() - 1;
    size_t at = (key.boxes ^ (static_cast<uint64_t>(key.player) << 57)) * 0x9E3779B97F4A7C15ull >> 32 & mask;
    while (slots_[at] >= 0 && !(key_of(nodes[slots_[at]]) == key)) at = (at + 1) & mask;
    return slots_[at];
  }

  void grow() {
    slots_.assign(std::max<size_t>(1024, 4 * slots_.size()), -1);
    for (size_t i = 0; i < nodes.size(); ++i) find_slot(key_of(nodes[i])) = static_cast<int32_t>(i);
  }

  Board floor_;
  size_t max_boards_;
  int max_pushes_;
  std::vector<int32_t> slots_;
};

}  // namespace

PuzzleBytes generate_sokoban(uint64_t seed, const Parameters& parameters) {
  SplitMix64 rng(seed);
  const int rows = parameters.at(0), columns = parameters.at(1), boxes = parameters.at(2);
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    Board floor = 0;
    for (int row = 1; row < rows - 1; ++row) {
      for (int column = 1; column < columns - 1; ++column) {
        if (rng.below(100) >= parameters.at(3)) floor |= bit(row * kWidth + column);
      }
    }
    floor = reachable(floor & -floor, floor);
    std::vector<int> cells;
    for (Board rest = floor; rest; rest &= rest - 1) cells.push_back(__builtin_ctzll(rest));
    if (static_cast<int>(cells.size()) < 2 * boxes + 6) continue;
    rng.shuffle(cells, static_cast<int>(cells.size()));
    Board goals = 0;
    for (int i = 0; i < boxes; ++i) goals |= bit(cells[i]);
    BackwardSearch search(floor, goals, parameters.at(6), parameters.at(5));
    search.run(nullptr);
    const int pushes = search.nodes.back().pushes;
    if (pushes < parameters.at(4)) continue;
    std::vector<int> candidates;
    for (size_t i = 0; i < search.nodes.size(); ++i) {
      if (search.nodes[i].pushes == pushes) candidates.push_back(static_cast<int>(i));
    }
    const int index = candidates[rng.below(static_cast<int>(candidates.size()))];
    const Node& node = search.nodes[index];
    int num_skipped = rng.below(__builtin_popcountll(node.region));
    Board region = node.region;
    while (num_skipped-- > 0) region &= region - 1;
    PuzzleBytes bytes(65, kWall);
    for (const int cell : cells) {
      const bool box = node.boxes & bit(cell), goal = goals & bit(cell);
      bytes[cell] = box ? (goal ? kBoxOnGoal : kBox) : goal ? kGoal : kFloor;
    }
    bytes[64] = static_cast<uint8_t>(__builtin_ctzll(region));
    const PuzzleBytes moves = search.moves_to_solve(index, bytes[64]);
    bytes.insert(bytes.end(), moves.begin(), moves.end());
    return bytes;
  }
  throw std::runtime_error(
      "sokoban: no board with enough pushes found; lower the minimum or use fewer walls");
}

// The puzzle consists of 64 cells and the player's cell. Returns at most one solution; `max_boards` limits
// the search.
Solutions solve_sokoban(const PuzzleBytes& puzzle, const Parameters&, size_t max_boards) {
  if (puzzle.size() != 65 || puzzle[64] >= 64)
    throw std::invalid_argument(
        "sokoban: the puzzle must have 64 cells with a border of walls and a free cell for the player");
  Board floor = 0, goals = 0, boxes = 0;
  for (int cell = 0; cell < 64; ++cell) {
    const uint8_t kind = puzzle[cell];
    if (kind != kWall) floor |= bit(cell);
    if (kind == kGoal || kind == kBoxOnGoal) goals |= bit(cell);
    if (kind == kBox || kind == kBoxOnGoal) boxes |= bit(cell);
  }
  constexpr Board border = 0xFF818181818181FFull;
  if ((floor & border) || !(floor & ~boxes & bit(puzzle[64])))
    throw std::invalid_argument(
        "sokoban: the puzzle must have 64 cells with a border of walls and a free cell for the player");
  const Board region = reachable(bit(puzzle[64]), floor & ~boxes);
  const Key target{boxes, __builtin_ctzll(region)};
  BackwardSearch search(floor, goals, max_boards);
  const int index = search.run(&target);
  if (index < 0) return {};
  return {search.moves_to_solve(index, puzzle[64])};
}

}  // namespace phalanx::puzzles
