// A logic program: facts indexed by each argument and as a hash set, rules grouped by the predicate of their
// head.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace phalanx::proofs {

// Consecutive rows [begin, end).
struct Range {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t size() const { return end - begin; }
};

constexpr int kMaxArity = 3;

class Program {
 public:
  // Predicates and constants are numbered from 1. An atom is a predicate and `arity` (2 or 3) terms. `facts`
  // [num_facts, 1 + arity] must be sorted and unique, `heads` [num_rules, 1 + arity] sorted by predicate;
  // `bodies` is [num_rules, max_body_length, 1 + arity], padded with zeros. The variables of a rule are -1,
  // -2, ... Throws std::invalid_argument if an array is invalid.
  Program(const int32_t* facts, int64_t num_facts, const int32_t* heads, const int32_t* bodies,
          int64_t num_rules, int64_t max_body_length, int64_t predicates, int64_t constants, int64_t arity);

  int32_t predicates, constants, max_body_length, arity;
  // Predicates of the special goal lists.
  int32_t true_index, false_index, end_index;

  // For each argument position, the arguments of all facts, sorted by predicate, that argument and then all
  // arguments.
  std::vector<int32_t> arguments[kMaxArity];
  // The arguments of heads, and bodies without padding.
  std::vector<int32_t> heads, body_atoms, body_start;

  bool is_constant(int32_t term) const { return term >= 1 && term <= constants; }

  Range facts_of_predicate(int32_t predicate) const {
    if (predicate < 1 || predicate > predicates) return {};
    const int64_t cell = int64_t{predicate - 1} * constants;
    return {start_[0][cell], start_[0][cell + constants]};
  }
  // Returns the rows of `arguments[argument]` whose facts have `constant` in that position.
  Range facts_with(int argument, int32_t predicate, int32_t constant) const {
    if (predicate < 1 || predicate > predicates) return {};
    const int64_t cell = int64_t{predicate - 1} * constants + constant - 1;
    return {start_[argument][cell], start_[argument][cell + 1]};
  }
  Range rules_of_predicate(int32_t predicate) const {
    if (predicate < 1 || predicate > predicates) return {};
    return {rule_start_[predicate], rule_start_[predicate + 1]};
  }

  template <int kArity>
  bool contains(int32_t predicate, const int32_t* terms) const {
    if (predicate < 1 || predicate > predicates) return false;
    const uint64_t wanted = key<kArity>(predicate, terms);
    for (uint64_t slot = hash(wanted);; ++slot) {
      const uint64_t found = set_[slot & set_mask_];
      if (found == wanted) return true;
      if (found == 0) return false;
    }
  }

 private:
  // Returns a number that is unique for each fact and never 0, because predicates and constants count from 1.
  template <int kArity>
  uint64_t key(int32_t predicate, const int32_t* terms) const {
    uint64_t key = uint64_t(predicate);
    for (int k = 0; k < kArity; ++k) key = key * constants + (uint64_t(terms[k]) - 1);
    return key;
  }
  uint64_t hash(uint64_t key) const { return (key * 0x9E3779B97F4A7C15ull) >> set_shift_; }

  std::vector<int32_t> start_[kMaxArity], rule_start_;
  std::vector<uint64_t> set_;
  uint64_t set_mask_;
  int set_shift_;
};

// Programs by key. A custom call has the key of its program as an attribute, so that a compiled function does
// not contain a copy of the facts. A program is deleted when it has been released as often as it was
// registered.
std::shared_ptr<const Program> find_program(int64_t key);
void register_program(int64_t key, std::shared_ptr<const Program> program);
void release_program(int64_t key);

}  // namespace phalanx::proofs
