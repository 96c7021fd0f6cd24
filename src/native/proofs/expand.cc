#include "proofs/expand.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "proofs/substitution.h"

namespace phalanx::proofs {
namespace {

// Expands one goal list after another; keeps the memory that it needs for it.
template <int kArity>
class Expander {
 public:
  static constexpr int kAtom = 1 + kArity;

  explicit Expander(const ExpandCall& call)
      : call_(call),
        program_(*call.program),
        row_(kAtom * call.atoms),
        budget_(call.states - (call.end_proof_action ? 1 : 0)),
        first_variable_(program_.constants + 1),
        candidate_(row_),
        names_(kArity * (call.atoms + program_.longest + 1)),
        rest_drops_(call.atoms) {
    int64_t slots = 16;
    while (slots < 2 * (call.states + call.memory)) slots *= 2;
    table_.resize(slots);
    hashes_.resize(call.states + call.memory);
  }

  void run(int64_t index) {
    bind(index);
    // Counts of another call's making must not lead out of the rows that there are.
    const int32_t old_count = std::clamp<int64_t>(call_.count[index], 0, call_.states);
    call_.visited_count[index] = std::clamp<int64_t>(call_.visited_count[index], 0, call_.memory);
    const int32_t forgotten = call_.restart ? call_.visited_count[index] : 0;
    if (call_.restart) call_.visited_count[index] = 0;
    int32_t found = 0;
    overflow_ = false;
    too_long_ = 0;
    int32_t skipped = 0;
    if (is_terminal(goals_[0])) {
      std::memcpy(successors_, goals_, row_ * sizeof(int32_t));
      found = 1;
    } else {
      keep_variables_in_range();
      for (;;) {
        if (call_.memory_pruning) remember(call_.visited_count[index]);
        found = enumerate(call_.visited_count[index]);
        if (found != 1 || overflow_ || skipped >= call_.unary_limit || is_terminal(successors_[0])) break;
        std::memcpy(goals_, successors_, row_ * sizeof(int32_t));
        ++skipped;
      }
      if (found == 0)
        write_mark(found++, program_.false_index);
      else if (call_.end_proof_action)
        write_mark(found++, program_.end_index);
    }
    // Rows behind `old_count` are zero already.
    if (old_count > found)
      std::memset(successors_ + found * row_, 0, (old_count - found) * row_ * sizeof(int32_t));
    const int32_t remembered = call_.visited_count[index];
    if (forgotten > remembered)
      std::memset(visited_ + remembered * row_, 0, (forgotten - remembered) * row_ * sizeof(int32_t));
    call_.count[index] = found;
    call_.overflow[index] = overflow_;
    call_.too_long[index] = too_long_;
    call_.skipped[index] = skipped;
  }

 private:
  void bind(int64_t index) {
    goals_ = call_.goals + index * row_;
    successors_ = call_.successors + index * call_.states * row_;
    visited_ = call_.visited + index * call_.memory * row_;
    query_ = call_.query + kAtom * index;
    excluded_ = call_.excluded[index];
  }

  bool is_terminal(int32_t predicate) const {
    return predicate == program_.true_index || predicate == program_.false_index;
  }

  void write_mark(int32_t place, int32_t predicate) {
    std::memset(successors_ + place * row_, 0, row_ * sizeof(int32_t));
    successors_[place * row_] = predicate;
  }

  // Canonical goals pass unchanged; others must not index past `names_`.
  void keep_variables_in_range() {
    const int32_t last = program_.constants + kArity * call_.atoms;
    bool out_of_range = false;
    for (int64_t k = 0; k < row_; ++k) out_of_range |= k % kAtom != 0 && goals_[k] > last;
    if (!out_of_range) return;
    std::vector<int32_t> seen;
    for (int64_t k = 0; k < row_; ++k) {
      if (k % kAtom == 0 || goals_[k] <= program_.constants) continue;
      auto at = std::find(seen.begin(), seen.end(), goals_[k]);
      if (at == seen.end()) at = seen.insert(at, goals_[k]);
      goals_[k] = first_variable_ + static_cast<int32_t>(at - seen.begin());
    }
  }

  uint64_t hash_of(const int32_t* row) const {
    uint64_t hash = kSeed;
    for (int64_t k = 0; k < row_ && row[k] != 0; k += kAtom) hash = mix<kArity>(hash, row + k);
    return hash;
  }

  void remember(int32_t& count) {
    if (count < call_.memory) std::memcpy(visited_ + count++ * row_, goals_, row_ * sizeof(int32_t));
  }

  // The entries of the table are visited states (by place) and then successors (behind `call_.memory`).
  const int32_t* entry(int32_t number) const {
    return number < call_.memory ? visited_ + number * row_ : successors_ + (number - call_.memory) * row_;
  }

  // Enters a row under a number, unless an equal one is there.
  bool enter(const int32_t* row, uint64_t hash, int32_t number) {
    const uint64_t mask = table_.size() - 1;
    for (uint64_t slot = hash >> 32;; ++slot) {
      int32_t& taken = table_[slot & mask];
      if (taken < 0) {
        taken = number;
        hashes_[number] = hash;
        return true;
      }
      if (hashes_[taken] == hash && std::memcmp(entry(taken), row, row_ * sizeof(int32_t)) == 0) return false;
    }
  }

  bool is_query(int32_t predicate, const int32_t* terms) const {
    return excluded_ && predicate == query_[0] && std::equal(terms, terms + kArity, query_ + 1);
  }

  bool is_usable_fact(int32_t predicate, const int32_t* terms) const {
    return !is_query(predicate, terms) && program_.template contains<kArity>(predicate, terms);
  }

  // Writes all successors but the end action, in order, and returns how many there are.
  int32_t enumerate(int32_t visited_count) {
    std::fill(table_.begin(), table_.end(), -1);
    for (int32_t v = 0; v < visited_count; ++v) enter(visited_ + v * row_, hash_of(visited_ + v * row_), v);
    found_ = 0;
    rest_count_ = 0;
    while (rest_count_ + 1 < call_.atoms && goals_[kAtom * (rest_count_ + 1)] != 0) ++rest_count_;
    // Goals that are ground already stay or go in every candidate alike.
    for (int64_t r = 0; r < rest_count_; ++r) {
      const int32_t* atom = goals_ + kAtom * (r + 1);
      bool ground = true;
      for (int k = 1; k < kAtom; ++k) ground &= program_.is_constant(atom[k]);
      rest_drops_[r] = ground && is_usable_fact(atom[0], atom + 1);
    }
    if (try_facts()) try_rules();
    return found_;
  }

  // Both return false when the budget is exceeded.
  bool try_facts() {
    const int32_t predicate = goals_[0];
    const int32_t* terms = goals_ + 1;
    // By the bound argument that has the fewest facts; all of the predicate's without one.
    int side = 0, bound = 0;
    // Where the other goals do not mention the variables, all facts lead to the same successor.
    bool one_is_enough = true;
    Range range;
    for (int k = 0; k < kArity; ++k) {
      if (terms[k] >= first_variable_) {
        one_is_enough = one_is_enough && !in_rest(terms[k]);
        continue;
      }
      if (terms[k] < 1) return true;
      const Range some = program_.facts_with(k, predicate, terms[k]);
      if (bound++ == 0 || some.size() < range.size()) side = k, range = some;
    }
    if (bound == kArity) return !is_usable_fact(predicate, terms) || try_fact(terms);
    if (bound == 0) range = program_.facts_of(predicate);
    const bool guarded = excluded_ && predicate == query_[0];
    const int32_t* facts = program_.arguments[side].data();
    for (int32_t f = range.begin; f < range.end; ++f) {
      const int32_t* fact = facts + int64_t{kArity} * f;
      if (!agrees(fact, terms) || (guarded && std::equal(fact, fact + kArity, query_ + 1))) continue;
      if (!try_fact(fact)) return false;
      if (one_is_enough) break;
    }
    return true;
  }

  // Whether a fact has the goal's constants, and equal ones where the goal has one variable twice.
  bool agrees(const int32_t* fact, const int32_t* terms) const {
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

  bool in_rest(int32_t variable) const {
    for (int64_t r = 1; r <= rest_count_; ++r)
      for (int k = 1; k < kAtom; ++k)
        if (goals_[kAtom * r + k] == variable) return true;
    return false;
  }

  bool try_fact(const int32_t* fact) {
    Substitution<kArity> substitution;
    for (int k = 0; k < kArity; ++k)
      if (goals_[1 + k] >= first_variable_) {
        substitution.variables[substitution.count] = goals_[1 + k];
        substitution.values[substitution.count++] = fact[k];
      }
    begin_candidate();
    add_rest(substitution);
    return end_candidate();
  }

  bool try_rules() {
    const int32_t* terms = goals_ + 1;
    const Range range = program_.rules_of(goals_[0]);
    for (int32_t r = range.begin; r < range.end; ++r) {
      const int32_t* head = program_.heads.data() + int64_t{kArity} * r;
      Substitution<kArity> substitution;
      bool unifies = true;
      for (int k = 0; k < kArity && unifies; ++k) {
        if (head[k] > 0) {
          unifies = substitution.unify(terms[k], head[k], first_variable_);
          continue;
        }
        // A variable of the rule is what stands where it came first.
        int first = 0;
        while (head[first] != head[k]) ++first;
        if (first < k) unifies = substitution.unify(terms[first], terms[k], first_variable_);
      }
      if (!unifies) continue;
      begin_candidate();
      if (!add_body(r, head, substitution) || !add_rest(substitution)) {
        ++too_long_;
        continue;
      }
      if (!end_candidate()) return false;
    }
    return true;
  }

  void begin_candidate() {
    length_ = 0;
    hash_ = kSeed;
    next_name_ = first_variable_;
    std::fill(names_.begin(), names_.end(), 0);
  }

  bool add_body(int32_t rule, const int32_t* head, const Substitution<kArity>& substitution) {
    const int32_t fresh = program_.constants + kArity * call_.atoms;
    int32_t values[kArity];
    for (int k = 0; k < kArity; ++k) values[k] = substitution(goals_[1 + k]);
    const auto instance = [&](int32_t term) {
      if (term > 0) return term;
      for (int k = 0; k < kArity; ++k)
        if (term == head[k]) return values[k];
      return fresh - term;
    };
    for (int32_t m = program_.body_start[rule]; m < program_.body_start[rule + 1]; ++m) {
      const int32_t* atom = program_.body_atoms.data() + int64_t{kAtom} * m;
      int32_t made[kArity];
      for (int k = 0; k < kArity; ++k) made[k] = instance(atom[1 + k]);
      if (!add(atom[0], made)) return false;
    }
    return true;
  }

  bool add_rest(const Substitution<kArity>& substitution) {
    for (int64_t r = 0; r < rest_count_; ++r) {
      if (rest_drops_[r]) continue;
      const int32_t* atom = goals_ + kAtom * (r + 1);
      int32_t made[kArity];
      bool unchanged = true;
      for (int k = 0; k < kArity; ++k) {
        made[k] = substitution(atom[1 + k]);
        unchanged &= made[k] == atom[1 + k];
      }
      if (!(unchanged ? append(atom[0], made) : add(atom[0], made))) return false;
    }
    return true;
  }

  // Adds a goal unless it is a fact; false when it does not fit.
  bool add(int32_t predicate, const int32_t* terms) {
    bool ground = true;
    for (int k = 0; k < kArity; ++k) ground &= terms[k] < first_variable_;
    return (ground && is_usable_fact(predicate, terms)) || append(predicate, terms);
  }

  bool append(int32_t predicate, const int32_t* terms) {
    if (length_ == call_.atoms) return false;
    int32_t* place = candidate_.data() + kAtom * length_++;
    place[0] = predicate;
    for (int k = 0; k < kArity; ++k) place[1 + k] = named(terms[k]);
    hash_ = mix<kArity>(hash_, place);
    return true;
  }

  // Variables are numbered by first occurrence.
  int32_t named(int32_t term) {
    if (term < first_variable_) return term;
    int32_t& name = names_[term - first_variable_];
    if (name == 0) name = next_name_++;
    return name;
  }

  bool end_candidate() {
    constexpr int32_t nothing[kArity] = {};
    if (length_ == 0) append(program_.true_index, nothing);
    std::fill(candidate_.begin() + kAtom * length_, candidate_.end(), 0);
    if (found_ < budget_) {
      if (enter(candidate_.data(), hash_, call_.memory + found_))
        std::memcpy(successors_ + found_++ * row_, candidate_.data(), row_ * sizeof(int32_t));
      return true;
    }
    // One more than fits: it matters only whether it is new.
    if (!is_new()) return true;
    overflow_ = true;
    return false;
  }

  bool is_new() const {
    const uint64_t mask = table_.size() - 1;
    for (uint64_t slot = hash_ >> 32;; ++slot) {
      const int32_t taken = table_[slot & mask];
      if (taken < 0) return true;
      if (hashes_[taken] == hash_ && std::memcmp(entry(taken), candidate_.data(), row_ * sizeof(int32_t)) == 0)
        return false;
    }
  }

  const ExpandCall& call_;
  const Program& program_;
  const int64_t row_;
  const int32_t budget_;
  const int32_t first_variable_;

  int32_t *goals_ = nullptr, *successors_ = nullptr, *visited_ = nullptr;
  const int32_t* query_ = nullptr;
  bool excluded_ = false;

  int32_t found_ = 0, too_long_ = 0;
  bool overflow_ = false;
  int64_t rest_count_ = 0;

  std::vector<int32_t> candidate_, names_;
  int64_t length_ = 0;
  uint64_t hash_ = 0;
  int32_t next_name_ = 0;

  std::vector<char> rest_drops_;
  std::vector<int32_t> table_;
  std::vector<uint64_t> hashes_;
};

template <int kArity>
void expand_all(const ExpandCall& call, int64_t begin, int64_t end) {
  Expander<kArity> expander(call);
  for (int64_t index = begin; index < end; ++index)
    if (call.where[index]) expander.run(index);
}

}  // namespace

void expand(const ExpandCall& call, int64_t begin, int64_t end) {
  if (call.program->arity == 2)
    expand_all<2>(call, begin, end);
  else
    expand_all<3>(call, begin, end);
}

}  // namespace phalanx::proofs
