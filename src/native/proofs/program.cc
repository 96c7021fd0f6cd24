#include "proofs/program.h"

#include <algorithm>
#include <mutex>
#include <stdexcept>
#include <unordered_map>

namespace phalanx::proofs {

namespace {

constexpr int64_t kMaxCount = 1 << 28;

void require(bool holds, const char* rule) {
  if (!holds) throw std::invalid_argument(rule);
}

// Checks everything that the constructor and the kernel use as an index.
void check(const int32_t* facts, int64_t num_facts, const int32_t* heads, const int32_t* bodies,
           int64_t num_rules, int64_t max_body_length, int64_t predicates, int64_t constants, int64_t arity) {
  require(arity == 2 || arity == 3, "atoms must have two or three arguments");
  require(0 <= predicates && predicates <= kMaxCount && 0 <= constants && constants <= kMaxCount &&
              max_body_length <= kMaxCount,
          "a program must have at most 2^28 predicates and constants");
  require(predicates * constants <= int64_t{1} << 34,
          "the number of predicates times constants must be at most 2^34");
  // The hash set stores a fact as one 64-bit number.
  double keys = static_cast<double>(predicates) + 1;
  for (int64_t k = 0; k < arity; ++k) keys *= static_cast<double>(constants);
  require(keys < 9e18, "too many predicates and constants: the key of a fact must fit into 64 bits");
  const int64_t width = 1 + arity;
  const auto is_predicate = [&](int32_t number) { return 1 <= number && number <= predicates; };
  // A rule has at most as many variables as its head and the atoms of its body have arguments.
  const auto is_term = [&](int32_t term) {
    return -arity * (max_body_length + 1) <= term && term <= constants && term != 0;
  };
  const auto is_atom = [&](const int32_t* atom) {
    return is_predicate(atom[0]) && std::all_of(atom + 1, atom + width, is_term);
  };
  for (int64_t f = 0; f < num_facts; ++f) {
    const int32_t* fact = facts + width * f;
    require(
        is_predicate(fact[0]) &&
            std::all_of(fact + 1, fact + width, [&](int32_t term) { return 1 <= term && term <= constants; }),
        "a fact has an unknown predicate or constant");
    require(f == 0 || std::lexicographical_compare(fact - width, fact, fact, fact + width),
            "facts must be sorted and unique");
  }
  for (int64_t r = 0; r < num_rules; ++r) {
    const int32_t* head = heads + width * r;
    require(is_atom(head), "the head of a rule has an unknown predicate or term");
    require(r == 0 || head[-width] <= head[0], "rules must be sorted by the predicates of their heads");
    const int32_t *atom = bodies + width * max_body_length * r, *end = atom + width * max_body_length;
    for (; atom != end && *atom != 0; atom += width)
      require(is_atom(atom), "the body of a rule has an unknown predicate or term");
  }
}

}  // namespace

Program::Program(const int32_t* facts, int64_t num_facts, const int32_t* rule_heads, const int32_t* bodies,
                 int64_t num_rules, int64_t max_body, int64_t num_predicates, int64_t num_constants,
                 int64_t num_arguments)
    : predicates(num_predicates),
      constants(num_constants),
      max_body_length(max_body),
      arity(num_arguments),
      true_index(num_predicates + 1),
      false_index(num_predicates + 2),
      end_index(num_predicates + 3) {
  check(facts, num_facts, rule_heads, bodies, num_rules, max_body, num_predicates, num_constants,
        num_arguments);
  const int64_t cells = num_predicates * num_constants, width = 1 + num_arguments;
  for (int argument = 0; argument < num_arguments; ++argument) {
    std::vector<int32_t>& start = start_[argument];
    start.assign(cells + 1, 0);
    const auto cell_of = [&](int64_t f) {
      const int32_t* fact = facts + width * f;
      return int64_t{fact[0] - 1} * num_constants + fact[1 + argument] - 1;
    };
    for (int64_t f = 0; f < num_facts; ++f) ++start[cell_of(f) + 1];
    for (int64_t cell = 0; cell < cells; ++cell) start[cell + 1] += start[cell];
    // The facts are sorted, and counting sort keeps their order among equal arguments.
    std::vector<int32_t> next(start.begin(), start.end() - 1);
    arguments[argument].resize(num_facts * num_arguments);
    for (int64_t f = 0; f < num_facts; ++f)
      std::copy_n(facts + width * f + 1, num_arguments,
                  arguments[argument].begin() + num_arguments * next[cell_of(f)]++);
  }

  int bits = 4;
  while ((int64_t{1} << bits) < 2 * num_facts) ++bits;
  set_.assign(size_t{1} << bits, 0);
  set_mask_ = (uint64_t{1} << bits) - 1;
  set_shift_ = 64 - bits;
  for (int64_t f = 0; f < num_facts; ++f) {
    const int32_t* fact = facts + width * f;
    const uint64_t wanted = num_arguments == 2 ? key<2>(fact[0], fact + 1) : key<3>(fact[0], fact + 1);
    uint64_t slot = hash(wanted);
    while (set_[slot & set_mask_] != 0) ++slot;
    set_[slot & set_mask_] = wanted;
  }

  rule_start_.assign(num_predicates + 2, 0);
  body_start.push_back(0);
  for (int64_t r = 0; r < num_rules; ++r) {
    const int32_t* head = rule_heads + width * r;
    for (int64_t p = head[0] + 1; p < num_predicates + 2; ++p) ++rule_start_[p];
    heads.insert(heads.end(), head + 1, head + width);
    const int32_t* body = bodies + width * max_body * r;
    for (int64_t m = 0; m < max_body && body[width * m] != 0; ++m)
      body_atoms.insert(body_atoms.end(), body + width * m, body + width * (m + 1));
    body_start.push_back(body_atoms.size() / width);
  }
}

namespace {

struct Entry {
  std::shared_ptr<const Program> program;
  int64_t num_handles = 0;
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

void register_program(int64_t key, std::shared_ptr<const Program> program) {
  std::lock_guard<std::mutex> lock(registry_mutex());
  Entry& entry = registry()[key];
  if (entry.num_handles++ == 0) entry.program = std::move(program);
}

void release_program(int64_t key) {
  std::lock_guard<std::mutex> lock(registry_mutex());
  const auto at = registry().find(key);
  if (at != registry().end() && --at->second.num_handles == 0) registry().erase(at);
}

}  // namespace phalanx::proofs
