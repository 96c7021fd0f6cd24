// Binary and nonogram: two values, and rules about whole rows and columns.

#include <map>

#include "puzzles/puzzles.h"

namespace phalanx::puzzles {

namespace {

constexpr uint16_t kBoth = 3;

// Row `line` for line < size, else a column: where its cells begin and how far they are from one another.
struct Line {
  Line(int line, int size) : start(line < size ? line * size : line - size), stride(line < size ? 1 : size) {}
  int at(int place) const { return start + place * stride; }
  int start, stride;
};

// As many zeros as ones in each line, never three alike in a row, no two rows and no two columns alike.
class Binary {
 public:
  explicit Binary(int size) : size_(size) {}

  bool propagate(Domains& domains) const {
    bool changed = true;
    const auto exclude = [&](int cell, uint16_t value) {
      if (!(domains[cell] & value)) return true;
      domains[cell] &= ~value;
      changed = true;
      return domains[cell] != 0;
    };
    while (changed) {
      changed = false;
      for (int number = 0; number < 2 * size_; ++number) {
        const Line line(number, size_);
        for (const uint16_t value : {1, 2}) {
          int count = 0;
          for (int i = 0; i < size_; ++i) {
            const bool here = domains[line.at(i)] == value;
            count += here;
            if (here && i + 1 < size_ && domains[line.at(i + 1)] == value) {
              if (i > 0 && !exclude(line.at(i - 1), value)) return false;
              if (i + 2 < size_ && !exclude(line.at(i + 2), value)) return false;
            }
            if (here && i + 2 < size_ && domains[line.at(i + 2)] == value &&
                !exclude(line.at(i + 1), value)) {
              return false;
            }
          }
          if (2 * count > size_) return false;
          for (int i = 0; 2 * count == size_ && i < size_; ++i) {
            if (domains[line.at(i)] == kBoth && !exclude(line.at(i), value)) return false;
          }
        }
      }
    }
    return true;
  }

  bool accepts(const Domains& domains) const {
    for (int side = 0; side < 2; ++side) {
      std::array<bool, 1 << 10> seen{};
      for (int i = 0; i < size_; ++i) {
        const Line line(side * size_ + i, size_);
        int bits = 0;
        for (int j = 0; j < size_; ++j) bits = 2 * bits + (domains[line.at(j)] == 2);
        if (seen[bits]) return false;
        seen[bits] = true;
      }
    }
    return true;
  }

 private:
  int size_;
};

using Runs = std::vector<uint8_t>;

Runs runs_of(int mask, int size) {
  Runs runs((size + 1) / 2, 0);
  int count = 0, length = 0;
  for (int i = 0; i <= size; ++i) {
    if (i < size && (mask >> i & 1)) {
      ++length;
    } else if (length) {
      runs[count++] = static_cast<uint8_t>(length);
      length = 0;
    }
  }
  return runs;
}

// The lines of a size by their clues.
const std::map<Runs, std::vector<int>>& lines_by_runs(int size) {
  static thread_local std::map<int, std::map<Runs, std::vector<int>>> known;
  auto& table = known[size];
  if (table.empty()) {
    for (int mask = 0; mask < 1 << size; ++mask) table[runs_of(mask, size)].push_back(mask);
  }
  return table;
}

// Domains: 1 is empty, 2 is filled.
class Nonogram {
 public:
  Nonogram(const uint8_t* clues, int size) : size_(size) {
    static const std::vector<int> none;
    const int slots = (size + 1) / 2;
    const auto& table = lines_by_runs(size);
    for (int line = 0; line < 2 * size; ++line) {
      const auto found = table.find(Runs(clues + line * slots, clues + (line + 1) * slots));
      lines_.push_back(found == table.end() ? &none : &found->second);
    }
  }

  bool propagate(Domains& domains) const {
    uint32_t dirty = (1u << 2 * size_) - 1;
    while (dirty) {
      const int number = __builtin_ctz(dirty);
      dirty &= dirty - 1;
      const Line line(number, size_);
      int filled = 0, empty = 0;
      for (int i = 0; i < size_; ++i) {
        filled |= (domains[line.at(i)] == 2) << i;
        empty |= (domains[line.at(i)] == 1) << i;
      }
      int always = (1 << size_) - 1, ever = 0;
      for (const int mask : *lines_[number]) {
        if ((mask & filled) == filled && !(mask & empty)) always &= mask, ever |= mask;
      }
      if (always & ~ever) return false;
      for (int i = 0; i < size_; ++i) {
        const uint16_t narrowed = always >> i & 1 ? 2 : ever >> i & 1 ? 3 : 1;
        if (domains[line.at(i)] == (domains[line.at(i)] & narrowed)) continue;
        domains[line.at(i)] &= narrowed;
        dirty |= 1u << (number < size_ ? size_ + i : i);
      }
    }
    return true;
  }

  bool accepts(const Domains&) const { return true; }

 private:
  int size_;
  std::vector<const std::vector<int>*> lines_;
};

Domains all_open(int cells) {
  Domains domains{};
  for (int c = 0; c < cells; ++c) domains[c] = kBoth;
  return domains;
}

}  // namespace

// Parameters: size, blanks. Record: givens, solution; 1 is a zero and 2 is a one.
Record make_binary(uint64_t seed, const Parameters& parameters) {
  Draws draws(seed);
  const int size = parameters.at(0), cells = size * size;
  const Binary rules(size);
  Search<Binary> search(rules, cells, 1, &draws);
  search.run(all_open(cells));
  Record solution(cells);
  for (int c = 0; c < cells; ++c) solution[c] = static_cast<uint8_t>(search.found.at(0)[c]);
  Record record = with_blanks(rules, solution, kBoth, parameters.at(1), draws);
  record.insert(record.end(), solution.begin(), solution.end());
  return record;
}

Solutions solve_binary(const Record& puzzle, const Parameters& parameters, size_t limit) {
  const int size = parameters.at(0), cells = size * size;
  if (puzzle.size() != static_cast<size_t>(cells)) throw std::invalid_argument("not the givens of it");
  Domains domains = all_open(cells);
  for (int c = 0; c < cells; ++c) {
    if (puzzle[c] > 2) throw std::invalid_argument("a value is neither a zero nor a one");
    if (puzzle[c]) domains[c] = puzzle[c];
  }
  return solutions_of(Binary(size), domains, cells, limit, 1);
}

// Parameters: size, the share of filled cells in per cent. Record: clues of rows and columns, each with zeros
// to (size + 1) / 2; solution, 1 where a cell is filled.
Record make_nonogram(uint64_t seed, const Parameters& parameters) {
  Draws draws(seed);
  const int size = parameters.at(0), cells = size * size;
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    Record solution(cells), record;
    for (int c = 0; c < cells; ++c) solution[c] = draws.below(100) < parameters.at(1);
    for (int number = 0; number < 2 * size; ++number) {
      const Line line(number, size);
      int mask = 0;
      for (int i = 0; i < size; ++i) mask |= solution[line.at(i)] << i;
      const Runs runs = runs_of(mask, size);
      record.insert(record.end(), runs.begin(), runs.end());
    }
    const Nonogram rules(record.data(), size);
    Search<Nonogram> search(rules, cells, 2);
    search.run(all_open(cells));
    if (search.found.size() != 1) continue;
    record.insert(record.end(), solution.begin(), solution.end());
    return record;
  }
  throw std::runtime_error("no nonogram with one solution was found");
}

Solutions solve_nonogram(const Record& puzzle, const Parameters& parameters, size_t limit) {
  const int size = parameters.at(0);
  if (puzzle.size() != static_cast<size_t>(2 * size * ((size + 1) / 2))) {
    throw std::invalid_argument("not the clues of it");
  }
  return solutions_of(Nonogram(puzzle.data(), size), all_open(size * size), size * size, limit, 0);
}

}  // namespace phalanx::puzzles
