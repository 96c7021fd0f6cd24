#include "proofs/expand.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "proofs/substitution.h"

namespace phalanx::proofs {
namespace {

// Expands one state after another and reuses its memory.
template <int kArity>
class Expander {
 public:
  static constexpr int kAtom = 1 + kArity;

  explicit Expander(const ExpandCall& call)
      : call_(call),
        program_(*call.program),
        row_size_(kAtom * call.max_goals),
        max_found_(call.max_successors - (call.end_proof_action ? 1 : 0)),
        first_variable_(program_.constants + 1),
        candidate_(row_size_),
        variable_names_(kArity * (call.max_goals + program_.max_body_length + 1)),
        drop_rest_(call.max_goals) {
    int64_t slots = 16;
    while (slots < 2 * (call.max_successors + call.max_visited)) slots *= 2;
    table_.resize(slots);
    hashes_.resize(call.max_successors + call.max_visited);
  }

  void expand_one(int64_t index) {
    select(index);
    // The counts may come from a state of another environment, so they are clamped to the size of the arrays.
    const int32_t old_count = std::clamp<int64_t>(call_.count[index], 0, call_.max_successors);
    call_.visited_count[index] = std::clamp<int64_t>(call_.visited_count[index], 0, call_.max_visited);
    const int32_t old_visited_count = call_.clear_visited ? call_.visited_count[index] : 0;
    if (call_.clear_visited) call_.visited_count[index] = 0;
    int32_t num_found = 0;
    overflow_ = false;
    num_too_long_ = 0;
    int32_t num_skipped = 0;
    if (is_terminal(goals_[0])) {
      std::memcpy(successors_, goals_, row_size_ * sizeof(int32_t));
      num_found = 1;
    } else {
      renumber_variables();
      for (;;) {
        if (call_.prune_visited) append_visited(call_.visited_count[index]);
        num_found = find_successors(call_.visited_count[index]);
        if (num_found != 1 || overflow_ || num_skipped >= call_.max_skipped_states ||
            is_terminal(successors_[0]))
          break;
        std::memcpy(goals_, successors_, row_size_ * sizeof(int32_t));
        ++num_skipped;
      }
      if (num_found == 0)
        write_special(num_found++, program_.false_index);
      else if (call_.end_proof_action)
        write_special(num_found++, program_.end_index);
    }
    // Rows from `old_count` on are zero already.
    if (old_count > num_found)
      std::memset(successors_ + num_found * row_size_, 0,
                  (old_count - num_found) * row_size_ * sizeof(int32_t));
    const int32_t visited_count = call_.visited_count[index];
    if (old_visited_count > visited_count)
      std::memset(visited_ + visited_count * row_size_, 0,
                  (old_visited_count - visited_count) * row_size_ * sizeof(int32_t));
    call_.count[index] = num_found;
    call_.overflow[index] = overflow_;
    call_.num_too_long[index] = num_too_long_;
    call_.num_skipped[index] = num_skipped;
  }

 private:
  void select(int64_t index) {
    goals_ = call_.goals + index * row_size_;
    successors_ = call_.successors + index * call_.max_successors * row_size_;
    visited_ = call_.visited + index * call_.max_visited * row_size_;
    query_ = call_.query + kAtom * index;
    excluded_ = call_.exclude_query[index];
  }

  bool is_terminal(int32_t predicate) const {
    return predicate == program_.true_index || predicate == program_.false_index;
  }

  void write_special(int32_t row, int32_t predicate) {
    std::memset(successors_ + row * row_size_, 0, row_size_ * sizeof(int32_t));
    successors_[row * row_size_] = predicate;
  }

  // Renumbers variables that are too large for `variable_names_`. The states that this code creates have
  // none.
  void renumber_variables() {
    const int32_t max_term = program_.constants + kArity * call_.max_goals;
    bool out_of_range = false;
    for (int64_t k = 0; k < row_size_; ++k) out_of_range |= k % kAtom != 0 && goals_[k] > max_term;
    if (!out_of_range) return;
    std::vector<int32_t> variables;
    for (int64_t k = 0; k < row_size_; ++k) {
      if (k % kAtom == 0 || goals_[k] <= program_.constants) continue;
      auto at = std::find(variables.begin(), variables.end(), goals_[k]);
      if (at == variables.end()) at = variables.insert(at, goals_[k]);
      goals_[k] = first_variable_ + static_cast<int32_t>(at - variables.begin());
    }
  }

  uint64_t hash_goals(const int32_t* row) const {
    uint64_t hash = kHashSeed;
    for (int64_t k = 0; k < row_size_ && row[k] != 0; k += kAtom) hash = hash_atom<kArity>(hash, row + k);
    return hash;
  }

  void append_visited(int32_t& count) {
    if (count < call_.max_visited)
      std::memcpy(visited_ + count++ * row_size_, goals_, row_size_ * sizeof(int32_t));
  }

  // The hash table contains indices of visited states, and indices of successors plus `max_visited`.
  const int32_t* row_of(int32_t number) const {
    return number < call_.max_visited ? visited_ + number * row_size_
                                      : successors_ + (number - call_.max_visited) * row_size_;
  }

  // Adds a row unless the table has an equal one.
  bool insert(const int32_t* row, uint64_t hash, int32_t number) {
    const uint64_t mask = table_.size() - 1;
    for (uint64_t slot = hash >> 32;; ++slot) {
      int32_t& entry = table_[slot & mask];
      if (entry < 0) {
        entry = number;
        hashes_[number] = hash;
        return true;
      }
      if (hashes_[entry] == hash && std::memcmp(row_of(entry), row, row_size_ * sizeof(int32_t)) == 0)
        return false;
    }
  }

  bool is_excluded(int32_t predicate, const int32_t* terms) const {
    return excluded_ && predicate == query_[0] && std::equal(terms, terms + kArity, query_ + 1);
  }

  bool is_usable_fact(int32_t predicate, const int32_t* terms) const {
    return !is_excluded(predicate, terms) && program_.template contains<kArity>(predicate, terms);
  }

  // Writes all successors except for the end action and returns their number.
  int32_t find_successors(int32_t visited_count) {
    std::fill(table_.begin(), table_.end(), -1);
    for (int32_t v = 0; v < visited_count; ++v)
      insert(visited_ + v * row_size_, hash_goals(visited_ + v * row_size_), v);
    num_found_ = 0;
    num_rest_ = 0;
    while (num_rest_ + 1 < call_.max_goals && goals_[kAtom * (num_rest_ + 1)] != 0) ++num_rest_;
    // Goals without variables are the same in every candidate; those that are facts are dropped.
    for (int64_t r = 0; r < num_rest_; ++r) {
      const int32_t* atom = goals_ + kAtom * (r + 1);
      bool ground = true;
      for (int k = 1; k < kAtom; ++k) ground &= program_.is_constant(atom[k]);
      drop_rest_[r] = ground && is_usable_fact(atom[0], atom + 1);
    }
    if (resolve_facts()) resolve_rules();
    return num_found_;
  }

  // Both functions return false if there are more successors than fit.
  bool resolve_facts() {
    const int32_t predicate = goals_[0];
    const int32_t* terms = goals_ + 1;
    // Use the index of the bound argument with the fewest facts, or all facts of the predicate if no argument
    // is bound.
    int argument = 0, bound = 0;
    // If no other goal contains the variables of this one, all facts lead to the same successor.
    bool first_fact_suffices = true;
    Range range;
    for (int k = 0; k < kArity; ++k) {
      if (terms[k] >= first_variable_) {
        first_fact_suffices = first_fact_suffices && !occurs_in_rest(terms[k]);
        continue;
      }
      if (terms[k] < 1) return true;
      const Range candidates = program_.facts_with(k, predicate, terms[k]);
      if (bound++ == 0 || candidates.size() < range.size()) argument = k, range = candidates;
    }
    if (bound == kArity) return !is_usable_fact(predicate, terms) || resolve_fact(terms);
    if (bound == 0) range = program_.facts_of_predicate(predicate);
    const bool check_query = excluded_ && predicate == query_[0];
    const int32_t* facts = program_.arguments[argument].data();
    for (int32_t f = range.begin; f < range.end; ++f) {
      const int32_t* fact = facts + int64_t{kArity} * f;
      if (!matches(fact, terms) || (check_query && std::equal(fact, fact + kArity, query_ + 1))) continue;
      if (!resolve_fact(fact)) return false;
      if (first_fact_suffices) break;
    }
    return true;
  }

  // Returns whether a fact has the constants of the goal, and equal constants where the goal repeats a
  // variable.
  bool matches(const int32_t* fact, const int32_t* terms) const {
    for (int k = 0; k < kArity; ++k) {
      if (terms[k] < first_variable_) {
        if (fact[k] != terms[k]) return false;
        continue;
      }
      for (int m = 0; m < k; ++m)
        if (terms[m] == terms[k] && fact[m] != fact[k]) return false;
    }
    return true;
  }

  bool occurs_in_rest(int32_t variable) const {
    for (int64_t r = 1; r <= num_rest_; ++r)
      for (int k = 1; k < kAtom; ++k)
        if (goals_[kAtom * r + k] == variable) return true;
    return false;
  }

  bool resolve_fact(const int32_t* fact) {
    Substitution<kArity> substitution;
    for (int k = 0; k < kArity; ++k)
      if (goals_[1 + k] >= first_variable_) {
        substitution.variables[substitution.count] = goals_[1 + k];
        substitution.values[substitution.count++] = fact[k];
      }
    start_candidate();
    add_rest(substitution);
    return finish_candidate();
  }

  bool resolve_rules() {
    const int32_t* terms = goals_ + 1;
    const Range range = program_.rules_of_predicate(goals_[0]);
    for (int32_t r = range.begin; r < range.end; ++r) {
      const int32_t* head = program_.heads.data() + int64_t{kArity} * r;
      Substitution<kArity> substitution;
      bool unifies = true;
      for (int k = 0; k < kArity && unifies; ++k) {
        if (head[k] > 0) {
          unifies = substitution.unify(terms[k], head[k], first_variable_);
          continue;
        }
        // A repeated variable of the rule stands for the goal's term at its first occurrence.
        int first = 0;
        while (head[first] != head[k]) ++first;
        if (first < k) unifies = substitution.unify(terms[first], terms[k], first_variable_);
      }
      if (!unifies) continue;
      start_candidate();
      if (!add_body(r, head, substitution) || !add_rest(substitution)) {
        ++num_too_long_;
        continue;
      }
      if (!finish_candidate()) return false;
    }
    return true;
  }

  void start_candidate() {
    length_ = 0;
    hash_ = kHashSeed;
    next_variable_ = first_variable_;
    std::fill(variable_names_.begin(), variable_names_.end(), 0);
  }

  bool add_body(int32_t rule, const int32_t* head, const Substitution<kArity>& substitution) {
    const int32_t fresh_base = program_.constants + kArity * call_.max_goals;
    int32_t values[kArity];
    for (int k = 0; k < kArity; ++k) values[k] = substitution(goals_[1 + k]);
    const auto instantiate = [&](int32_t term) {
      if (term > 0) return term;
      for (int k = 0; k < kArity; ++k)
        if (term == head[k]) return values[k];
      return fresh_base - term;
    };
    for (int32_t m = program_.body_start[rule]; m < program_.body_start[rule + 1]; ++m) {
      const int32_t* atom = program_.body_atoms.data() + int64_t{kAtom} * m;
      int32_t terms[kArity];
      for (int k = 0; k < kArity; ++k) terms[k] = instantiate(atom[1 + k]);
      if (!add(atom[0], terms)) return false;
    }
    return true;
  }

  bool add_rest(const Substitution<kArity>& substitution) {
    for (int64_t r = 0; r < num_rest_; ++r) {
      if (drop_rest_[r]) continue;
      const int32_t* atom = goals_ + kAtom * (r + 1);
      int32_t terms[kArity];
      bool unchanged = true;
      for (int k = 0; k < kArity; ++k) {
        terms[k] = substitution(atom[1 + k]);
        unchanged &= terms[k] == atom[1 + k];
      }
      if (!(unchanged ? append(atom[0], terms) : add(atom[0], terms))) return false;
    }
    return true;
  }

  // Adds a goal unless it is a fact; returns false if it does not fit.
  bool add(int32_t predicate, const int32_t* terms) {
    bool ground = true;
    for (int k = 0; k < kArity; ++k) ground &= terms[k] < first_variable_;
    return (ground && is_usable_fact(predicate, terms)) || append(predicate, terms);
  }

  bool append(int32_t predicate, const int32_t* terms) {
    if (length_ == call_.max_goals) return false;
    int32_t* row = candidate_.data() + kAtom * length_++;
    row[0] = predicate;
    for (int k = 0; k < kArity; ++k) row[1 + k] = rename(terms[k]);
    hash_ = hash_atom<kArity>(hash_, row);
    return true;
  }

  // Numbers variables by their first occurrence, so that equal states have equal rows.
  int32_t rename(int32_t term) {
    if (term < first_variable_) return term;
    int32_t& name = variable_names_[term - first_variable_];
    if (name == 0) name = next_variable_++;
    return name;
  }

  bool finish_candidate() {
    constexpr int32_t no_terms[kArity] = {};
    if (length_ == 0) append(program_.true_index, no_terms);
    std::fill(candidate_.begin() + kAtom * length_, candidate_.end(), 0);
    if (num_found_ < max_found_) {
      if (insert(candidate_.data(), hash_, call_.max_visited + num_found_))
        std::memcpy(successors_ + num_found_++ * row_size_, candidate_.data(), row_size_ * sizeof(int32_t));
      return true;
    }
    // There is space for no more successors; what matters is only whether this one is new.
    if (!is_new()) return true;
    overflow_ = true;
    return false;
  }

  bool is_new() const {
    const uint64_t mask = table_.size() - 1;
    for (uint64_t slot = hash_ >> 32;; ++slot) {
      const int32_t entry = table_[slot & mask];
      if (entry < 0) return true;
      if (hashes_[entry] == hash_ &&
          std::memcmp(row_of(entry), candidate_.data(), row_size_ * sizeof(int32_t)) == 0)
        return false;
    }
  }

  const ExpandCall& call_;
  const Program& program_;
  const int64_t row_size_;
  const int32_t max_found_;
  const int32_t first_variable_;

  int32_t *goals_ = nullptr, *successors_ = nullptr, *visited_ = nullptr;
  const int32_t* query_ = nullptr;
  bool excluded_ = false;

  int32_t num_found_ = 0, num_too_long_ = 0;
  bool overflow_ = false;
  int64_t num_rest_ = 0;

  std::vector<int32_t> candidate_, variable_names_;
  int64_t length_ = 0;
  uint64_t hash_ = 0;
  int32_t next_variable_ = 0;

  std::vector<char> drop_rest_;
  std::vector<int32_t> table_;
  std::vector<uint64_t> hashes_;
};

template <int kArity>
void expand_all(const ExpandCall& call, int64_t begin, int64_t end) {
  Expander<kArity> expander(call);
  for (int64_t index = begin; index < end; ++index)
    if (call.active[index]) expander.expand_one(index);
}

}  // namespace

void expand(const ExpandCall& call, int64_t begin, int64_t end) {
  if (call.program->arity == 2)
    expand_all<2>(call, begin, end);
  else
    expand_all<3>(call, begin, end);
}

}  // namespace phalanx::proofs
