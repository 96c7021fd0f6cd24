#include "kg/path_network.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "common/cpu_features.h"
#include "common/parallel.h"
#include "kg/path_network_kernel.h"

namespace phalanx::kg::path_network {
namespace {

// Answers with a lower probability get no gradient. These are most of the answers, and would take most of the
// time.
constexpr float kMinProbability = 1e-6f;
// A minibatch is split into this many shards, each summed in order, so the sum is the same on any number of
// threads.
constexpr int64_t kNumShards = 4;

const Kernels& kernels() { return PHALANX_SELECT_KERNELS; }

}  // namespace

struct PathNetwork::Workspace {
  explicit Workspace(const TripleGraph& graph) : index_of(graph.num_entities, -1) {}

  // Collects the entities and edges around `entity`. The edge of the query to `hidden_tail` is left out in
  // both directions.
  void build_neighborhood(const TripleGraph& graph, int32_t entity, int32_t query_relation,
                          int32_t hidden_tail, int32_t num_layers) {
    for (int32_t previous : order) index_of[previous] = -1;
    order.assign(1, entity), index_of[entity] = 0;
    source.clear(), relation.clear(), target.clear();
    neighborhood.num_entities[0] = 1;
    size_t position = 0;
    for (int32_t t = 0; t < num_layers; ++t) {
      for (const size_t end = order.size(); position < end; ++position) {
        const int32_t here = order[position];
        for (int64_t r = graph.run_start[here]; r < graph.run_start[here + 1]; ++r) {
          const EdgeRun& run = graph.runs[r];
          for (int64_t i = run.begin; i < run.end; ++i) {
            const int32_t to = graph.targets[i];
            if (here == entity && to == hidden_tail && run.relation == query_relation) continue;
            if (here == hidden_tail && to == entity && run.relation == (query_relation ^ 1)) continue;
            if (index_of[to] < 0) index_of[to] = static_cast<int32_t>(order.size()), order.push_back(to);
            source.push_back(static_cast<int32_t>(position)), relation.push_back(run.relation);
            target.push_back(index_of[to]);
          }
        }
      }
      neighborhood.num_edges[t] = static_cast<int64_t>(source.size());
      neighborhood.num_entities[t + 1] = static_cast<int32_t>(order.size());
    }
    neighborhood.source = source.data(), neighborhood.relation = relation.data(),
    neighborhood.target = target.data();
  }

  void score(const Layout& layout, int32_t query_relation, const float* parameters) {
    buffers.resize(workspace_size(layout, neighborhood)), scores.resize(order.size());
    kernels().forward(layout, neighborhood, query_relation, parameters, buffers.data(), scores.data());
  }

  std::vector<int32_t> index_of, order, source, relation, target;
  std::vector<float> buffers, scores, score_gradient, gradient;
  Neighborhood neighborhood;
  double loss = 0.0;
};

PathNetwork::PathNetwork(std::shared_ptr<const TripleGraph> graph, int32_t num_layers,
                         bool query_dependent_relations, int32_t num_threads)
    : graph_(std::move(graph)),
      layout_{num_layers, graph_->num_directed_relations, query_dependent_relations},
      num_threads_(num_threads) {
  for (int64_t i = 0; i < std::max<int64_t>(kNumShards, num_threads); ++i)
    workspaces_.push_back(std::make_unique<Workspace>(*graph_));
}

PathNetwork::~PathNetwork() = default;

double PathNetwork::loss_and_gradient(const float* parameters, const int32_t* rows, int64_t count,
                                      float* gradient) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t size = layout_.size();
  parallel_for(ThreadLauncher(num_threads_), kNumShards, 1, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t shard = begin; shard < end; ++shard) {
      Workspace& workspace = *workspaces_[shard];
      workspace.gradient.assign(size, 0.0f), workspace.loss = 0.0;
      for (int64_t i = shard; i < count; i += kNumShards)
        accumulate_gradient(workspace, parameters, rows + 3 * i);
    }
  });
  double loss = 0.0;
  std::fill_n(gradient, size, 0.0f);
  for (int64_t shard = 0; shard < kNumShards; ++shard) {
    loss += workspaces_[shard]->loss;
    for (int64_t i = 0; i < size; ++i) gradient[i] += workspaces_[shard]->gradient[i];
  }
  return loss;
}

void PathNetwork::accumulate_gradient(Workspace& workspace, const float* parameters,
                                      const int32_t* row) const {
  const int32_t entity = row[0], query_relation = row[1], answer = row[2];
  workspace.build_neighborhood(*graph_, entity, query_relation, answer, layout_.num_layers);
  workspace.score(layout_, query_relation, parameters);
  const int64_t num_reached = static_cast<int64_t>(workspace.order.size());
  int64_t num_unreachable = graph_->num_entities - num_reached;
  // Other true answers are not counted as wrong.
  if (const EdgeRun* run = graph_->find_run(entity, query_relation))
    for (int64_t i = run->begin; i < run->end; ++i) {
      const int32_t to = graph_->targets[i];
      if (to == answer) continue;
      if (workspace.index_of[to] < 0) {
        --num_unreachable;
      } else {
        workspace.scores[workspace.index_of[to]] = -std::numeric_limits<float>::infinity();
      }
    }
  const float unreachable_score = parameters[layout_.unreachable_score() + query_relation];
  const double max_score =
      std::max(unreachable_score, *std::max_element(workspace.scores.begin(), workspace.scores.end()));
  const double unreachable_mass =
      static_cast<double>(num_unreachable) * std::exp(unreachable_score - max_score);
  double sum = unreachable_mass;
  for (float score : workspace.scores) sum += std::exp(score - max_score);
  const int32_t answer_index = workspace.index_of[answer];
  workspace.loss +=
      std::log(sum) + max_score - (answer_index >= 0 ? workspace.scores[answer_index] : unreachable_score);
  workspace.score_gradient.resize(num_reached);
  for (int64_t v = 0; v < num_reached; ++v) {
    const float probability = static_cast<float>(std::exp(workspace.scores[v] - max_score) / sum);
    workspace.score_gradient[v] = v == answer_index               ? probability - 1.0f
                                  : probability > kMinProbability ? probability
                                                                  : 0.0f;
  }
  workspace.gradient[layout_.unreachable_score() + query_relation] +=
      static_cast<float>(unreachable_mass / sum - (answer_index < 0));
  kernels().backward(layout_, workspace.neighborhood, query_relation, parameters, workspace.buffers.data(),
                     workspace.score_gradient.data(), workspace.gradient.data());
}

void PathNetwork::score(const float* parameters, const int32_t* rows, int64_t count, float* table) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto score_row = [&](Workspace& workspace, int64_t i) {
    const int32_t entity = rows[2 * i], query_relation = rows[2 * i + 1];
    workspace.build_neighborhood(*graph_, entity, query_relation, -1, layout_.num_layers);
    workspace.score(layout_, query_relation, parameters);
    float* row = table + i * graph_->num_entities;
    std::fill_n(row, graph_->num_entities, parameters[layout_.unreachable_score() + query_relation]);
    for (size_t v = 0; v < workspace.order.size(); ++v) row[workspace.order[v]] = workspace.scores[v];
  };
  parallel_for(ThreadLauncher(num_threads_), count, 1, [&](int64_t worker, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) score_row(*workspaces_[worker], i);
  });
}

}  // namespace phalanx::kg::path_network
