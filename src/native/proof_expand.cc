#include "proof_expand.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace phalanx::proofs {
namespace {

constexpr uint64_t kSeed = 0x243F6A8885A308D3ull;

uint64_t mix(uint64_t hash, int32_t predicate, int32_t first, int32_t second) {
  hash ^= uint64_t(uint32_t(predicate)) << 40 ^ uint64_t(uint32_t(first)) << 20 ^ uint64_t(uint32_t(second));
  hash *= 0x9E3779B97F4A7C15ull;
  return hash ^ hash >> 29;
}

// What a head or a fact binds the first goal's two arguments to.
struct Substitution {
  int32_t x, y;          // the goal's arguments
  bool x_bound, y_bound;  // whether they are variables that are bound
  int32_t x_value, y_value;

  int32_t operator()(int32_t term) const {
    if (x_bound && term == x) return x_value;
    if (y_bound && term == y) return y_value;
    return term;
  }
};

// Expands one goal list after another; keeps the memory that it needs for it.
class Expander {
 public:
  explicit Expander(const ExpandCall& call)
      : call_(call),
        program_(*call.program),
        row_(3 * call.atoms),
        budget_(call.states - (call.end_proof_action ? 1 : 0)),
        first_variable_(program_.constants + 1),
        candidate_(row_),
        names_(2 * call.atoms + 2 * program_.longest + 2),
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
    query_ = call_.query + 3 * index;
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
    const int32_t last = program_.constants + 2 * call_.atoms;
    bool out_of_range = false;
    for (int64_t k = 0; k < row_; ++k) out_of_range |= k % 3 != 0 && goals_[k] > last;
    if (!out_of_range) return;
    std::vector<int32_t> seen;
    for (int64_t k = 0; k < row_; ++k) {
      if (k % 3 == 0 || goals_[k] <= program_.constants) continue;
      auto at = std::find(seen.begin(), seen.end(), goals_[k]);
      if (at == seen.end()) at = seen.insert(at, goals_[k]);
      goals_[k] = first_variable_ + static_cast<int32_t>(at - seen.begin());
    }
  }

  uint64_t hash_of(const int32_t* row) const {
    uint64_t hash = kSeed;
    for (int64_t k = 0; k < row_ && row[k] != 0; k += 3) hash = mix(hash, row[k], row[k + 1], row[k + 2]);
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

  bool is_usable_fact(int32_t predicate, int32_t first, int32_t second) const {
    if (excluded_ && predicate == query_[0] && first == query_[1] && second == query_[2]) return false;
    return program_.contains(predicate, first, second);
  }

  // Writes all successors but the end action, in order, and returns how many there are.
  int32_t enumerate(int32_t visited_count) {
    std::fill(table_.begin(), table_.end(), -1);
    for (int32_t v = 0; v < visited_count; ++v) enter(visited_ + v * row_, hash_of(visited_ + v * row_), v);
    found_ = 0;
    rest_count_ = 0;
    while (rest_count_ + 1 < call_.atoms && goals_[3 * (rest_count_ + 1)] != 0) ++rest_count_;
    // Goals that are ground already stay or go in every candidate alike.
    for (int64_t r = 0; r < rest_count_; ++r) {
      const int32_t* atom = goals_ + 3 * (r + 1);
      const bool ground = program_.is_constant(atom[1]) && program_.is_constant(atom[2]);
      rest_drops_[r] = ground && is_usable_fact(atom[0], atom[1], atom[2]);
    }
    if (try_facts()) try_rules();
    return found_;
  }

  // Both return false when the budget is exceeded.
  bool try_facts() {
    const int32_t predicate = goals_[0], x = goals_[1], y = goals_[2];
    const bool x_free = x >= first_variable_, y_free = y >= first_variable_;
    if ((!x_free && x < 1) || (!y_free && y < 1)) return true;
    if (!x_free && !y_free) return !is_usable_fact(predicate, x, y) || try_fact(x, y);
    // Where the other goals do not mention the variables, all facts lead to the same successor.
    const bool one_is_enough = !(x_free && in_rest(x)) && !(y_free && in_rest(y));
    const Range range = !x_free   ? program_.facts_with_first(predicate, x)
                        : !y_free ? program_.facts_with_second(predicate, y)
                                  : program_.facts_of(predicate);
    const bool same = x == y;
    const bool guarded = excluded_ && predicate == query_[0];
    for (int32_t f = range.begin; f < range.end; ++f) {
      const int32_t a = !x_free ? x : !y_free ? program_.first_by_second[f] : program_.first[f];
      const int32_t b = !y_free ? y : program_.second[f];
      if ((same && a != b) || (guarded && a == query_[1] && b == query_[2])) continue;
      if (!try_fact(a, b)) return false;
      if (one_is_enough) break;
    }
    return true;
  }

  bool in_rest(int32_t variable) const {
    for (int64_t r = 1; r <= rest_count_; ++r)
      if (goals_[3 * r + 1] == variable || goals_[3 * r + 2] == variable) return true;
    return false;
  }

  bool try_fact(int32_t a, int32_t b) {
    const int32_t x = goals_[1], y = goals_[2];
    const Substitution substitution{x, y, x >= first_variable_, y >= first_variable_, a, b};
    begin_candidate();
    add_rest(substitution);
    return end_candidate();
  }

  bool try_rules() {
    const int32_t x = goals_[1], y = goals_[2];
    const bool x_free = x >= first_variable_, y_free = y >= first_variable_;
    const Range range = program_.rules_of(goals_[0]);
    for (int32_t r = range.begin; r < range.end; ++r) {
      const int32_t h1 = program_.heads[2 * r], h2 = program_.heads[2 * r + 1];
      Substitution substitution{x, y, false, false, 0, 0};
      if (h1 < 0 && h1 == h2) {
        if (x != y) {
          if (x_free) {
            substitution.x_bound = true;
            substitution.x_value = y;
          } else if (y_free) {
            substitution.y_bound = true;
            substitution.y_value = x;
          } else {
            continue;
          }
        }
      } else {
        if (h1 > 0 && !x_free && x != h1) continue;
        if (h2 > 0 && !y_free && y != h2) continue;
        if (h1 > 0 && h2 > 0 && x == y && h1 != h2) continue;
        substitution.x_bound = x_free && h1 > 0;
        substitution.x_value = h1;
        substitution.y_bound = y_free && h2 > 0;
        substitution.y_value = h2;
      }
      begin_candidate();
      if (!add_body(r, h1, substitution(x), h2, substitution(y)) || !add_rest(substitution)) {
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

  bool add_body(int32_t rule, int32_t h1, int32_t h1_value, int32_t h2, int32_t h2_value) {
    const int32_t fresh = program_.constants + 2 * call_.atoms;
    const auto instance = [&](int32_t term) {
      return term > 0 ? term : term == h1 ? h1_value : term == h2 ? h2_value : fresh - term;
    };
    for (int32_t k = program_.body_start[rule]; k < program_.body_start[rule + 1]; ++k) {
      const int32_t* atom = program_.body_atoms.data() + 3 * k;
      if (!add(atom[0], instance(atom[1]), instance(atom[2]))) return false;
    }
    return true;
  }

  bool add_rest(const Substitution& substitution) {
    for (int64_t r = 0; r < rest_count_; ++r) {
      if (rest_drops_[r]) continue;
      const int32_t* atom = goals_ + 3 * (r + 1);
      const int32_t a = substitution(atom[1]), b = substitution(atom[2]);
      const bool unchanged = a == atom[1] && b == atom[2];
      if (!(unchanged ? append(atom[0], a, b) : add(atom[0], a, b))) return false;
    }
    return true;
  }

  // Adds a goal unless it is a fact; false when it does not fit.
  bool add(int32_t predicate, int32_t a, int32_t b) {
    if (a < first_variable_ && b < first_variable_ && is_usable_fact(predicate, a, b)) return true;
    return append(predicate, a, b);
  }

  bool append(int32_t predicate, int32_t a, int32_t b) {
    if (length_ == call_.atoms) return false;
    int32_t* place = candidate_.data() + 3 * length_++;
    place[0] = predicate;
    place[1] = named(a);
    place[2] = named(b);
    hash_ = mix(hash_, place[0], place[1], place[2]);
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
    if (length_ == 0) append(program_.true_index, 0, 0);
    std::fill(candidate_.begin() + 3 * length_, candidate_.end(), 0);
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

}  // namespace

void expand(const ExpandCall& call, int64_t begin, int64_t end) {
  Expander expander(call);
  for (int64_t index = begin; index < end; ++index)
    if (call.where[index]) expander.run(index);
}

}  // namespace phalanx::proofs
