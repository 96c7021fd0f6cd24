// Mining and applying rules as Python calls them: graphs, miners and appliers are objects, rules are arrays.

#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <stdexcept>

#include "kg/rule_predictor.h"

namespace nb = nanobind;

namespace phalanx::mining {
namespace {

template <typename T, typename Shape>
using In = nb::ndarray<const T, Shape, nb::c_contig, nb::device::cpu>;
template <typename T, typename Shape>
using Out = nb::ndarray<T, Shape, nb::c_contig, nb::device::cpu>;
constexpr int32_t kRule = kLongest + 3;  // head, body, head's constant, body's constant
constexpr int64_t kMost = int64_t{1} << 40;

void check_threads(int32_t threads) {
  if (threads < 1 || threads > 1024) throw nb::value_error("there must be 1 to 1024 threads");
}

template <typename T>
nb::ndarray<nb::numpy, T> owned(std::vector<T> values, std::initializer_list<size_t> shape) {
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* data) noexcept { delete static_cast<std::vector<T>*>(data); });
  return nb::ndarray<nb::numpy, T>(kept->data(), shape, owner);
}

// Rules as rows of numbers, and their counts: support, predictions, predictions where X is known.
nb::tuple as_arrays(const std::vector<MinedRule>& rules) {
  std::vector<int32_t> rows;
  std::vector<int64_t> counts;
  rows.reserve(rules.size() * kRule), counts.reserve(rules.size() * 3);
  for (const MinedRule& rule : rules) {
    rows.push_back(rule.head);
    rows.insert(rows.end(), rule.body.begin(), rule.body.end());
    rows.insert(rows.end(), {rule.head_constant, rule.body_constant});
    counts.insert(counts.end(), {rule.support, rule.body_size, rule.known_size});
  }
  return nb::make_tuple(owned(std::move(rows), {rules.size(), kRule}), owned(std::move(counts), {rules.size(), 3}));
}

std::shared_ptr<Graph> make_graph(In<int32_t, nb::shape<-1, 3>> triples, int32_t entities, int32_t relations) {
  nb::gil_scoped_release unlocked;
  return std::make_shared<Graph>(triples.data(), triples.shape(0), entities, relations);
}

std::shared_ptr<PathMiner> make_miner(std::shared_ptr<Graph> graph, int32_t length, int64_t fan, int64_t enough,
                                      int64_t limit, uint64_t seed, int32_t threads) {
  if (length < 1 || length > kLongest || fan < 1 || fan > kMost) throw nb::value_error("length or fan is out of range");
  check_threads(threads);
  nb::gil_scoped_release unlocked;
  return std::make_shared<PathMiner>(graph, length, fan, enough, limit, seed, threads);
}

std::shared_ptr<Applier> make_applier(std::shared_ptr<Graph> graph, In<int32_t, nb::shape<-1, kRule>> rows,
                                      In<int32_t, nb::ndim<1>> levels, int64_t limit, int32_t threads) {
  if (rows.shape(0) != levels.shape(0)) throw nb::value_error("rules and levels must be equally many");
  check_threads(threads);
  std::vector<MinedRule> rules(rows.shape(0));
  for (size_t i = 0; i < rules.size(); ++i) {
    const int32_t* row = rows.data() + i * kRule;
    rules[i].head = row[0];
    std::copy(row + 1, row + 1 + kLongest, rules[i].body.begin());
    rules[i].head_constant = row[kLongest + 1], rules[i].body_constant = row[kLongest + 2];
    for (int32_t k = 0; k <= kLongest; ++k)
      if (row[k] >= graph->directed || row[k] < (k < 2 ? 0 : -1)) throw nb::value_error("a rule's relation is unknown");
    for (int32_t k = 2; k < kLongest; ++k)
      if (row[k] < 0 && row[k + 1] >= 0) throw nb::value_error("a rule's body has a gap");
    for (int32_t k = kLongest + 1; k < kRule; ++k)
      if (row[k] >= graph->entities) throw nb::value_error("a rule's constant is unknown");
  }
  std::vector<int32_t> order(levels.data(), levels.data() + levels.shape(0));
  nb::gil_scoped_release unlocked;
  return std::make_shared<Applier>(graph, std::move(rules), std::move(order), limit, threads);
}

void check_question(const Applier& applier, const Question& question) {
  if (question.entity < 0 || question.entity >= applier.graph().entities || question.relation < 0 ||
      question.relation >= applier.graph().directed)
    throw nb::value_error("a question is outside the graph");
}

std::vector<Question> questions_of(const Applier& applier, const In<int32_t, nb::shape<-1, 2>>& rows) {
  std::vector<Question> questions(rows.shape(0));
  for (size_t i = 0; i < questions.size(); ++i) {
    questions[i] = {rows.data()[2 * i], rows.data()[2 * i + 1]};
    check_question(applier, questions[i]);
  }
  return questions;
}

void check_weights(const Applier& applier, size_t weights) {
  if (weights != 2 * applier.num_rules()) throw nb::value_error("there must be two weights for each rule");
}

Aggregation aggregation(const std::string& how) {
  if (how != "maximum" && how != "sum") throw nb::value_error("aggregation must be maximum or sum");
  return how == "maximum" ? Aggregation::maximum : Aggregation::sum;
}

void rank(const Applier& applier, std::shared_ptr<Graph> known, In<int32_t, nb::shape<-1, 2>> rows,
          In<int64_t, nb::ndim<1>> begins, In<int32_t, nb::ndim<1>> targets, const std::string& how,
          In<double, nb::ndim<1>> weights, Out<int64_t, nb::ndim<1>> above, Out<int64_t, nb::ndim<1>> level) {
  const auto questions = questions_of(applier, rows);
  if (begins.shape(0) != rows.shape(0) + 1 || above.shape(0) != targets.shape(0) || level.shape(0) != targets.shape(0))
    throw nb::value_error("questions, targets and ranks do not go together");
  for (size_t i = 0; i < begins.shape(0); ++i) {
    const int64_t before = i == 0 ? 0 : begins.data()[i - 1], here = begins.data()[i];
    if (here < before || here > static_cast<int64_t>(targets.shape(0)))
      throw nb::value_error("the targets of the questions must begin one after the other");
  }
  if (known->entities != applier.graph().entities || known->directed != applier.graph().directed)
    throw nb::value_error("what is known must be of the same entities and relations");
  const Aggregation chosen = aggregation(how);
  if (chosen == Aggregation::sum) check_weights(applier, weights.shape(0));
  nb::gil_scoped_release unlocked;
  applier.rank(*known, questions, begins.data(), targets.data(), chosen, weights.data(), above.data(), level.data());
}

void scores(const Applier& applier, In<int32_t, nb::shape<-1, 2>> rows, const std::string& how,
            In<double, nb::ndim<1>> weights, Out<float, nb::ndim<2>> table) {
  const auto questions = questions_of(applier, rows);
  if (table.shape(0) != rows.shape(0) || static_cast<int32_t>(table.shape(1)) != applier.graph().entities)
    throw nb::value_error("the table must have a row for each question and a column for each entity");
  check_weights(applier, weights.shape(0));
  const Aggregation chosen = aggregation(how);
  nb::gil_scoped_release unlocked;
  applier.scores(questions, chosen, weights.data(), table.data());
}

void learn(const Applier& applier, Out<double, nb::ndim<1>> weights, In<int32_t, nb::ndim<1>> relations, int64_t most,
           int64_t negatives, int32_t epochs, double rate, double decay, uint64_t seed) {
  check_weights(applier, weights.shape(0));
  if (most < 0 || most > kMost || negatives < 0 || negatives > kMost)
    throw nb::value_error("the most examples or negatives are out of range");
  for (size_t i = 0; i < relations.shape(0); ++i)
    if (relations.data()[i] < 0 || relations.data()[i] >= applier.graph().directed)
      throw nb::value_error("a relation is outside the graph");
  nb::gil_scoped_release unlocked;
  each(applier.threads(), static_cast<int64_t>(relations.shape(0)), [&](int32_t, int64_t i) {
    applier.learn(weights.data(), relations.data()[i], most, negatives, epochs, rate, decay, seed);
  });
}

nb::tuple predict(const Applier& applier, int32_t entity, int32_t relation) {
  check_question(applier, {entity, relation});
  Predictions found = applier.predict({entity, relation});
  const size_t answers = found.answers.size(), rules = found.rules.size();
  return nb::make_tuple(owned(std::move(found.answers), {answers}), owned(std::move(found.begins), {answers + 1}),
                        owned(std::move(found.rules), {rules}));
}

}  // namespace

void bind_mining(nb::module_& module) {
  nb::class_<Graph>(module, "MiningGraph", "Triples (relation, head, tail), numbered from 0, indexed both ways.")
      .def(nb::new_(&make_graph), nb::arg("triples"), nb::arg("entities"), nb::arg("relations"));
  const auto unlocked = nb::call_guard<nb::gil_scoped_release>();
  nb::class_<PathMiner>(module, "PathMiner", "Path rules, in rounds that are done whole.")
      .def(nb::new_(&make_miner), nb::arg("graph"), nb::arg("length"), nb::arg("fan"), nb::arg("enough"),
           nb::arg("limit"), nb::arg("seed"), nb::arg("threads"))
      .def("discover", &PathMiner::discover, nb::arg("triples"), unlocked)
      .def("choose", &PathMiner::choose, nb::arg("least"), nb::arg("most"), unlocked)
      .def("measure", &PathMiner::measure, nb::arg("entities"), unlocked)
      .def("rules", [](const PathMiner& miner, int64_t least) { return as_arrays(miner.rules(least)); },
           nb::arg("least_support"));
  module.def(
      "mine_constants",
      [](std::shared_ptr<Graph> graph, int32_t begin, int32_t end, int64_t least_support, double least_confidence,
         double pessimism, int64_t widest, bool dangling, bool pca, int32_t threads) {
        std::vector<MinedRule> rules;
        check_threads(threads);
        end = std::min(end, graph->entities);
        if (begin < 0 || begin > end) throw nb::value_error("begin and end must be entities, one after the other");
        {
          nb::gil_scoped_release released;
          rules = mine_constants(*graph, begin, end, least_support, least_confidence,
                                 pessimism, widest, dangling, pca, threads);
        }
        return as_arrays(rules);
      },
      nb::arg("graph"), nb::arg("begin"), nb::arg("end"), nb::arg("least_support"), nb::arg("least_confidence"),
      nb::arg("pessimism"), nb::arg("widest"), nb::arg("dangling"), nb::arg("pca"),
      nb::arg("threads"));
  nb::class_<Applier>(module, "RuleApplier", "Rules, applied to questions (entity, directed relation).")
      .def(nb::new_(&make_applier), nb::arg("graph"), nb::arg("rules"), nb::arg("levels"), nb::arg("limit"),
           nb::arg("threads"))
      .def("rank", &rank)
      .def("scores", &scores)
      .def("learn", &learn)
      .def("predict", &predict, nb::arg("entity"), nb::arg("relation"));
}

}  // namespace phalanx::mining
