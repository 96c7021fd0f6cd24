// Knights and knaves: everybody makes a statement; knights tell the truth and knaves lie. A world assigns a
// role to every person, and a statement is represented by the set of worlds in which it is true, one bit per
// world. Parameters: number of people, number of statement forms. Bytes: indices of the names, five numbers
// per statement, and for each person 2 (knight) or 1 (knave).

#include <array>
#include <stdexcept>
#include <vector>

#include "common/random.h"
#include "puzzles/puzzles.h"

namespace phalanx::puzzles {

namespace {

constexpr int kNumNames = 12;
using WorldSet = uint64_t;
using Statement =
    std::array<int, 5>;  // form, person, whether that person is a knight, second person, the same

struct WorldSets {
  explicit WorldSets(int people)
      : all_worlds(people == 6 ? ~WorldSet{0} : (WorldSet{1} << (1 << people)) - 1) {
    for (int world = 0; world < 1 << people; ++world) {
      for (int person = 0; person < people; ++person) {
        if (world >> person & 1) knight[person] |= WorldSet{1} << world;
      }
      counts[__builtin_popcount(world)] |= WorldSet{1} << world;
    }
  }

  // Returns the worlds in which a statement is true.
  WorldSet worlds_where(const Statement& statement) const {
    if (statement[0] == 4) return counts[statement[1]];
    const WorldSet first = statement[2] ? knight[statement[1]] : all_worlds & ~knight[statement[1]];
    const WorldSet second = statement[4] ? knight[statement[3]] : all_worlds & ~knight[statement[3]];
    switch (statement[0]) {
      case 0: return first;
      case 1: return all_worlds & ~(first ^ second);
      case 2: return first & second;
      case 3: return first | second;
      default: return (all_worlds & ~first) | second;
    }
  }

  std::array<WorldSet, 6> knight{};
  std::array<WorldSet, 7> counts{};
  WorldSet all_worlds;
};

Statement draw_statement(SplitMix64& rng, int speaker, int people, int forms) {
  const int form = rng.below(forms);
  if (form == 4) return {form, rng.below(people + 1), 0, 0, 0};
  const std::vector<int> order = rng.permutation(people - 1);
  const int first = (speaker + 1 + order[0]) % people, second = (speaker + 1 + order[1]) % people;
  if (form == 1) return {form, first, 1, second, 1};
  const int first_is_knight = rng.below(2), second_is_knight = rng.below(2);
  return {form, first, first_is_knight, second, second_is_knight};
}

}  // namespace

PuzzleBytes generate_knights(uint64_t seed, const Parameters& parameters) {
  SplitMix64 rng(seed);
  const int people = parameters.at(0), forms = parameters.at(1);
  const WorldSets sets(people);
  PuzzleBytes bytes;
  const std::vector<int> names = rng.permutation(kNumNames);
  for (int person = 0; person < people; ++person) bytes.push_back(static_cast<uint8_t>(names[person]));
  for (int attempt = 0; attempt < kMaxAttempts; ++attempt) {
    const int world = rng.below(1 << people);
    std::vector<Statement> statements;
    WorldSet worlds = sets.all_worlds;
    while (static_cast<int>(statements.size()) < people) {
      const int speaker = static_cast<int>(statements.size());
      const Statement statement = draw_statement(rng, speaker, people, forms);
      const WorldSet contradicting = sets.knight[speaker] ^ sets.worlds_where(statement);
      if (contradicting >> world & 1) continue;
      statements.push_back(statement);
      worlds &= ~contradicting;
    }
    if (worlds != WorldSet{1} << world) continue;
    for (const Statement& statement : statements)
      bytes.insert(bytes.end(), statement.begin(), statement.end());
    for (int person = 0; person < people; ++person) bytes.push_back(1 + (world >> person & 1));
    return bytes;
  }
  throw std::runtime_error("knights: no puzzle with a unique solution found; use more forms of statements");
}

// The puzzle consists of the statements.
Solutions solve_knights(const PuzzleBytes& puzzle, const Parameters& parameters, size_t max_solutions) {
  const int people = parameters.at(0);
  if (puzzle.size() != static_cast<size_t>(5 * people))
    throw std::invalid_argument("knights: the puzzle must have five bytes per person");
  const WorldSets sets(people);
  WorldSet worlds = sets.all_worlds;
  for (int speaker = 0; speaker < people; ++speaker) {
    Statement statement;
    for (int i = 0; i < 5; ++i) statement[i] = puzzle[5 * speaker + i];
    if (statement[0] > 5 || statement[1] >= people + (statement[0] == 4) || statement[3] >= people) {
      throw std::invalid_argument("knights: a statement has an unknown form or person");
    }
    worlds &= ~(sets.knight[speaker] ^ sets.worlds_where(statement));
  }
  Solutions solutions;
  for (; worlds && solutions.size() < max_solutions; worlds &= worlds - 1) {
    const int world = __builtin_ctzll(worlds);
    PuzzleBytes roles(people);
    for (int person = 0; person < people; ++person) roles[person] = 1 + (world >> person & 1);
    solutions.push_back(roles);
  }
  return solutions;
}

}  // namespace phalanx::puzzles
