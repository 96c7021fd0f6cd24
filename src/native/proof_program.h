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

class Program {
 public:
  // Anything else is a std::invalid_argument: `facts` [num_facts, 3] sorted and unique; `heads` [num_rules, 3] grouped by predicate; `bodies`
  // [num_rules, longest, 3] with zero rows behind.
  Program(const int32_t* facts, int64_t num_facts, const int32_t* heads, const int32_t* bodies, int64_t num_rules,
          int64_t longest, int64_t predicates, int64_t constants);

  int32_t predicates, constants, longest;
  int32_t true_index, false_index, end_index;

  // Arguments of the facts sorted by (predicate, first, second), and firsts sorted by (predicate, second, first).
  std::vector<int32_t> first, second, first_by_second;
  // Arguments of heads, and bodies without their padding.
  std::vector<int32_t> heads, body_atoms, body_start;

  bool is_constant(int32_t term) const { return term >= 1 && term <= constants; }

  Range facts_of(int32_t predicate) const {
    if (predicate < 1 || predicate > predicates) return {};
    const int64_t cell = int64_t{predicate - 1} * constants;
    return {start_by_first_[cell], start_by_first_[cell + constants]};
  }
  Range facts_with_first(int32_t predicate, int32_t argument) const {
    return range(start_by_first_, predicate, argument);
  }
  Range facts_with_second(int32_t predicate, int32_t argument) const {
    return range(start_by_second_, predicate, argument);
  }
  Range rules_of(int32_t predicate) const {
    if (predicate < 1 || predicate > predicates) return {};
    return {rule_start_[predicate], rule_start_[predicate + 1]};
  }

  bool contains(int32_t predicate, int32_t a, int32_t b) const {
    if (predicate < 1 || predicate > predicates) return false;
    const uint64_t wanted = key(predicate, a, b);
    for (uint64_t slot = hash(wanted);; ++slot) {
      const uint64_t found = set_[slot & set_mask_];
      if (found == wanted) return true;
      if (found == 0) return false;
    }
  }

 private:
  Range range(const std::vector<int32_t>& start, int32_t predicate, int32_t argument) const {
    if (predicate < 1 || predicate > predicates) return {};
    const int64_t cell = int64_t{predicate - 1} * constants + argument - 1;
    return {start[cell], start[cell + 1]};
  }
  // Never 0: predicates and constants begin with 1.
  uint64_t key(int32_t predicate, int32_t a, int32_t b) const {
    return (uint64_t(predicate) * constants + (uint64_t(a) - 1)) * constants + (uint64_t(b) - 1);
  }
  uint64_t hash(uint64_t key) const { return (key * 0x9E3779B97F4A7C15ull) >> set_shift_; }

  std::vector<int32_t> start_by_first_, start_by_second_, rule_start_;
  std::vector<uint64_t> set_;
  uint64_t set_mask_;
  int set_shift_;
};

// Programs by key. Custom calls name them by it, so that a compiled function carries no copy of the facts.
std::shared_ptr<const Program> find_program(int64_t key);
void keep_program(int64_t key, std::shared_ptr<const Program> program);
void release_program(int64_t key);

}  // namespace phalanx::proofs
