// A logic program in the kernel's own memory: facts indexed both ways, a hash set of them, rules by head.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace phalanx::proofs {

// A run of consecutive rows.
struct Range {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t size() const { return end - begin; }
};

constexpr int kMostArguments = 3;

class Program {
 public:
  // Anything else is a std::invalid_argument: atoms have a predicate and `arity` terms, 2 or 3; `facts` [num_facts,
  // 1 + arity] sorted and unique; `heads` [num_rules, 1 + arity] grouped by predicate; `bodies` [num_rules, longest,
  // 1 + arity] with zero rows behind.
  Program(const int32_t* facts, int64_t num_facts, const int32_t* heads, const int32_t* bodies, int64_t num_rules,
          int64_t longest, int64_t predicates, int64_t constants, int64_t arity);

  int32_t predicates, constants, longest, arity;
  int32_t true_index, false_index, end_index;

  // For each argument: the facts' arguments sorted by predicate, that argument, and then all in turn.
  std::vector<int32_t> arguments[kMostArguments];
  // Arguments of heads, and bodies without their padding.
  std::vector<int32_t> heads, body_atoms, body_start;

  bool is_constant(int32_t term) const { return term >= 1 && term <= constants; }

  Range facts_of(int32_t predicate) const {
    if (predicate < 1 || predicate > predicates) return {};
    const int64_t cell = int64_t{predicate - 1} * constants;
    return {start_[0][cell], start_[0][cell + constants]};
  }
  Range facts_with(int side, int32_t predicate, int32_t argument) const {
    if (predicate < 1 || predicate > predicates) return {};
    const int64_t cell = int64_t{predicate - 1} * constants + argument - 1;
    return {start_[side][cell], start_[side][cell + 1]};
  }
  Range rules_of(int32_t predicate) const {
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
  // Never 0: predicates and constants begin with 1.
  template <int kArity>
  uint64_t key(int32_t predicate, const int32_t* terms) const {
    uint64_t made = uint64_t(predicate);
    for (int k = 0; k < kArity; ++k) made = made * constants + (uint64_t(terms[k]) - 1);
    return made;
  }
  uint64_t hash(uint64_t key) const { return (key * 0x9E3779B97F4A7C15ull) >> set_shift_; }

  std::vector<int32_t> start_[kMostArguments], rule_start_;
  std::vector<uint64_t> set_;
  uint64_t set_mask_;
  int set_shift_;
};

// Programs by key. Custom calls name them by it, so that a compiled function carries no copy of the facts.
std::shared_ptr<const Program> find_program(int64_t key);
void keep_program(int64_t key, std::shared_ptr<const Program> program);
void release_program(int64_t key);

}  // namespace phalanx::proofs
