#include "proof_program.h"

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <unordered_map>

namespace phalanx::proofs {

namespace {

constexpr int64_t kMost = 1 << 28;  // predicates, constants, and atoms of a body

void require(bool holds, const char* rule) {
  if (!holds) throw std::invalid_argument(rule);
}

// Everything that the constructor and the kernel index by.
void check(const int32_t* facts, int64_t num_facts, const int32_t* heads, const int32_t* bodies, int64_t num_rules,
           int64_t longest, int64_t predicates, int64_t constants) {
  require(0 <= predicates && predicates <= kMost && 0 <= constants && constants <= kMost && longest <= kMost,
          "a program has at most 2^28 predicates and constants");
  require(predicates * constants <= int64_t{1} << 34, "too many predicates times constants");
  const auto is_predicate = [&](int32_t number) { return 1 <= number && number <= predicates; };
  // Variables of a rule are -1, -2, ...: two of its head and two of each atom of its body at most.
  const auto is_term = [&](int32_t term) { return -(2 * longest + 2) <= term && term <= constants && term != 0; };
  for (int64_t f = 0; f < num_facts; ++f) {
    const int32_t* fact = facts + 3 * f;
    require(is_predicate(fact[0]) && 1 <= fact[1] && fact[1] <= constants && 1 <= fact[2] && fact[2] <= constants,
            "a fact has a predicate or a constant that is out of range");
    require(f == 0 || std::lexicographical_compare(fact - 3, fact, fact, fact + 3),
            "facts must be sorted, each there once");
  }
  for (int64_t r = 0; r < num_rules; ++r) {
    const int32_t* head = heads + 3 * r;
    require(is_predicate(head[0]) && is_term(head[1]) && is_term(head[2]),
            "a rule's head has a predicate or a term that is out of range");
    require(r == 0 || head[-3] <= head[0], "rules must be grouped by the predicates of their heads");
    for (const int32_t *atom = bodies + 3 * longest * r, *end = atom + 3 * longest; atom != end && *atom != 0; atom += 3)
      require(is_predicate(atom[0]) && is_term(atom[1]) && is_term(atom[2]),
              "a rule's body has a predicate or a term that is out of range");
  }
}

}  // namespace

Program::Program(const int32_t* facts, int64_t num_facts, const int32_t* rule_heads, const int32_t* bodies,
                 int64_t num_rules, int64_t longest_body, int64_t num_predicates, int64_t num_constants)
    : predicates(num_predicates),
      constants(num_constants),
      longest(longest_body),
      true_index(num_predicates + 1),
      false_index(num_predicates + 2),
      end_index(num_predicates + 3) {
  check(facts, num_facts, rule_heads, bodies, num_rules, longest_body, num_predicates, num_constants);
  const int64_t cells = num_predicates * num_constants;
  start_by_first_.assign(cells + 1, 0);
  start_by_second_.assign(cells + 1, 0);
  first.resize(num_facts);
  second.resize(num_facts);
  first_by_second.resize(num_facts);
  const auto cell_of = [&](const int32_t* fact, int side) {
    return int64_t{fact[0] - 1} * num_constants + fact[side] - 1;
  };
  for (int64_t f = 0; f < num_facts; ++f) {
    const int32_t* fact = facts + 3 * f;
    first[f] = fact[1];
    second[f] = fact[2];
    ++start_by_first_[cell_of(fact, 1) + 1];
    ++start_by_second_[cell_of(fact, 2) + 1];
  }
  for (int64_t cell = 0; cell < cells; ++cell) {
    start_by_first_[cell + 1] += start_by_first_[cell];
    start_by_second_[cell + 1] += start_by_second_[cell];
  }
  // The facts come sorted by first argument, and counting keeps that order within a second argument.
  std::vector<int32_t> next(start_by_second_.begin(), start_by_second_.end() - 1);
  for (int64_t f = 0; f < num_facts; ++f) first_by_second[next[cell_of(facts + 3 * f, 2)]++] = facts[3 * f + 1];

  int bits = 4;
  while ((int64_t{1} << bits) < 2 * num_facts) ++bits;
  set_.assign(size_t{1} << bits, 0);
  set_mask_ = (uint64_t{1} << bits) - 1;
  set_shift_ = 64 - bits;
  for (int64_t f = 0; f < num_facts; ++f) {
    const uint64_t wanted = key(facts[3 * f], facts[3 * f + 1], facts[3 * f + 2]);
    uint64_t slot = hash(wanted);
    while (set_[slot & set_mask_] != 0) ++slot;
    set_[slot & set_mask_] = wanted;
  }

  rule_start_.assign(num_predicates + 2, 0);
  body_start.push_back(0);
  for (int64_t r = 0; r < num_rules; ++r) {
    const int32_t* head = rule_heads + 3 * r;
    for (int64_t p = head[0] + 1; p < num_predicates + 2; ++p) ++rule_start_[p];
    heads.push_back(head[1]);
    heads.push_back(head[2]);
    const int32_t* body = bodies + 3 * longest_body * r;
    for (int64_t m = 0; m < longest_body && body[3 * m] != 0; ++m)
      body_atoms.insert(body_atoms.end(), body + 3 * m, body + 3 * m + 3);
    body_start.push_back(body_atoms.size() / 3);
  }
}

namespace {

struct Entry {
  std::shared_ptr<const Program> program;
  int64_t holders = 0;
};

std::mutex& registry_mutex() {
  static std::mutex mutex;
  return mutex;
}

std::unordered_map<int64_t, Entry>& registry() {
  static std::unordered_map<int64_t, Entry> table;
  return table;
}

}  // namespace

std::shared_ptr<const Program> find_program(int64_t key) {
  std::lock_guard<std::mutex> lock(registry_mutex());
  const auto at = registry().find(key);
  return at == registry().end() ? nullptr : at->second.program;
}

void keep_program(int64_t key, std::shared_ptr<const Program> program) {
  std::lock_guard<std::mutex> lock(registry_mutex());
  Entry& entry = registry()[key];
  if (entry.holders++ == 0) entry.program = std::move(program);
}

void release_program(int64_t key) {
  std::lock_guard<std::mutex> lock(registry_mutex());
  const auto at = registry().find(key);
  if (at != registry().end() && --at->second.holders == 0) registry().erase(at);
}

}  // namespace phalanx::proofs
