// Knights and knaves: statements as truth tables over all ways that things can be, one bit for each.

#include "puzzles/puzzles.h"

namespace phalanx::puzzles {

namespace {

constexpr int kNames = 12;
using Table = uint64_t;
using Statement = std::array<int, 5>;  // form, a person and whether a knight is meant, another and the same

struct Tables {
  explicit Tables(int people) : every(people == 6 ? ~Table{0} : (Table{1} << (1 << people)) - 1) {
    for (int way = 0; way < 1 << people; ++way) {
      for (int person = 0; person < people; ++person) {
        if (way >> person & 1) knight[person] |= Table{1} << way;
      }
      counts[__builtin_popcount(way)] |= Table{1} << way;
    }
  }

  // The ways in which a statement is true.
  Table of(const Statement& said) const {
    if (said[0] == 4) return counts[said[1]];
    const Table first = said[2] ? knight[said[1]] : every & ~knight[said[1]];
    const Table second = said[4] ? knight[said[3]] : every & ~knight[said[3]];
    switch (said[0]) {
      case 0: return first;
      case 1: return every & ~(first ^ second);
      case 2: return first & second;
      case 3: return first | second;
      default: return (every & ~first) | second;
    }
  }

  std::array<Table, 6> knight{};
  std::array<Table, 7> counts{};
  Table every;
};

Statement draw_statement(Draws& draws, int speaker, int people, int forms) {
  const int form = draws.below(forms);
  if (form == 4) return {form, draws.below(people + 1), 0, 0, 0};
  const std::vector<int> order = draws.order(people - 1);
  const int one = (speaker + 1 + order[0]) % people, other = (speaker + 1 + order[1]) % people;
  if (form == 1) return {form, one, 1, other, 1};
  const int one_knight = draws.below(2), other_knight = draws.below(2);
  return {form, one, one_knight, other, other_knight};
}

}  // namespace

// Parameters: people, forms of statements. Record: the numbers of the names, five numbers for each statement,
// and 2 for a knight or 1 for a knave.
Record make_knights(uint64_t seed, const Parameters& parameters) {
  Draws draws(seed);
  const int people = parameters.at(0), forms = parameters.at(1);
  const Tables tables(people);
  Record record;
  const std::vector<int> names = draws.order(kNames);
  for (int person = 0; person < people; ++person) record.push_back(static_cast<uint8_t>(names[person]));
  for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
    const int way = draws.below(1 << people);
    std::vector<Statement> statements;
    Table models = tables.every;
    while (static_cast<int>(statements.size()) < people) {
      const int speaker = static_cast<int>(statements.size());
      const Statement said = draw_statement(draws, speaker, people, forms);
      const Table wrong = tables.knight[speaker] ^ tables.of(said);
      if (wrong >> way & 1) continue;
      statements.push_back(said);
      models &= ~wrong;
    }
    if (models != Table{1} << way) continue;
    for (const Statement& said : statements) record.insert(record.end(), said.begin(), said.end());
    for (int person = 0; person < people; ++person) record.push_back(1 + (way >> person & 1));
    return record;
  }
  throw std::runtime_error("no statements that leave one way were found");
}

// The puzzle: the statements.
Solutions solve_knights(const Record& puzzle, const Parameters& parameters, size_t limit) {
  const int people = parameters.at(0);
  if (puzzle.size() != static_cast<size_t>(5 * people)) throw std::invalid_argument("not the statements of it");
  const Tables tables(people);
  Table models = tables.every;
  for (int speaker = 0; speaker < people; ++speaker) {
    Statement said;
    for (int i = 0; i < 5; ++i) said[i] = puzzle[5 * speaker + i];
    if (said[0] > 5 || said[1] >= people + (said[0] == 4) || said[3] >= people) {
      throw std::invalid_argument("a statement speaks of nobody");
    }
    models &= ~(tables.knight[speaker] ^ tables.of(said));
  }
  Solutions found;
  for (; models && found.size() < limit; models &= models - 1) {
    const int way = __builtin_ctzll(models);
    Record roles(people);
    for (int person = 0; person < people; ++person) roles[person] = 1 + (way >> person & 1);
    found.push_back(roles);
  }
  return found;
}

}  // namespace phalanx::puzzles
