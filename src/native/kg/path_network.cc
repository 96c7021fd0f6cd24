#include "kg/path_network_kernel.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "kg/path_network.h"
#include "common/cpu_features.h"

namespace phalanx::paths {
namespace {

// Answers that are less likely than this push nothing: they are most of those around, and most of the work.
constexpr float kUnlikely = 1e-6f;
constexpr int64_t kShares = 4;  // of a minibatch, each summed in order: the sum is the same on any number of threads

const Kernels& kernels() { return PHALANX_BEST_KERNELS; }

}  // namespace

// What one thread works with.
struct Questions::Desk {
  explicit Desk(const mining::Graph& graph) : place(graph.entities, -1) {}

  // The entities and edges around `entity`; the edge asked about, to `hidden`, is not there either way round.
  void look(const mining::Graph& graph, int32_t entity, int32_t asked, int32_t hidden, int32_t layers) {
    for (int32_t seen : order) place[seen] = -1;
    order.assign(1, entity), place[entity] = 0;
    source.clear(), relation.clear(), target.clear();
    hood.entities[0] = 1;
    size_t at = 0;
    for (int32_t t = 0; t < layers; ++t) {
      for (const size_t end = order.size(); at < end; ++at) {
        const int32_t here = order[at];
        for (int64_t r = graph.run_start[here]; r < graph.run_start[here + 1]; ++r) {
          const mining::Run& run = graph.runs[r];
          for (int64_t i = run.begin; i < run.end; ++i) {
            const int32_t to = graph.targets[i];
            if (here == entity && to == hidden && run.relation == asked) continue;
            if (here == hidden && to == entity && run.relation == (asked ^ 1)) continue;
            if (place[to] < 0) place[to] = static_cast<int32_t>(order.size()), order.push_back(to);
            source.push_back(static_cast<int32_t>(at)), relation.push_back(run.relation);
            target.push_back(place[to]);
          }
        }
      }
      hood.edges[t] = static_cast<int64_t>(source.size());
      hood.entities[t + 1] = static_cast<int32_t>(order.size());
    }
    hood.source = source.data(), hood.relation = relation.data(), hood.target = target.data();
  }

  void score(const Layout& layout, int32_t asked, const float* parameters) {
    work.resize(work_size(layout, hood)), scores.resize(order.size());
    kernels().forward(layout, hood, asked, parameters, work.data(), scores.data());
  }

  std::vector<int32_t> place, order, source, relation, target;
  std::vector<float> work, scores, slope, gradient;
  Hood hood;
  double loss = 0.0;
};

Questions::Questions(std::shared_ptr<const mining::Graph> graph, int32_t layers, bool specific, int32_t threads)
    : graph_(std::move(graph)), layout_{layers, graph_->directed, specific}, threads_(threads) {
  for (int64_t i = 0; i < std::max<int64_t>(kShares, threads); ++i) desks_.push_back(std::make_unique<Desk>(*graph_));
}

Questions::~Questions() = default;

double Questions::learn(const float* parameters, const int32_t* rows, int64_t count, float* gradient) {
  const std::lock_guard<std::mutex> held(busy_);
  const int64_t size = layout_.size();
  mining::each(threads_, kShares, [&](int32_t, int64_t share) {
    Desk& desk = *desks_[share];
    desk.gradient.assign(size, 0.0f), desk.loss = 0.0;
    for (int64_t i = share; i < count; i += kShares) teach(desk, parameters, rows + 3 * i);
  });
  double loss = 0.0;
  std::fill_n(gradient, size, 0.0f);
  for (int64_t share = 0; share < kShares; ++share) {
    loss += desks_[share]->loss;
    for (int64_t i = 0; i < size; ++i) gradient[i] += desks_[share]->gradient[i];
  }
  return loss;
}

void Questions::teach(Desk& desk, const float* parameters, const int32_t* row) const {
  const int32_t entity = row[0], asked = row[1], answer = row[2];
  desk.look(*graph_, entity, asked, answer, layout_.layers);
  desk.score(layout_, asked, parameters);
  const int64_t around = static_cast<int64_t>(desk.order.size());
  int64_t beyond = graph_->entities - around;
  if (const mining::Run* run = graph_->run(entity, asked))  // other right answers are not wrong
    for (int64_t i = run->begin; i < run->end; ++i) {
      const int32_t to = graph_->targets[i];
      if (to == answer) continue;
      if (desk.place[to] < 0) {
        --beyond;
      } else {
        desk.scores[desk.place[to]] = -std::numeric_limits<float>::infinity();
      }
    }
  const float rest = parameters[layout_.rest() + asked];
  const double top = std::max(rest, *std::max_element(desk.scores.begin(), desk.scores.end()));
  const double far = static_cast<double>(beyond) * std::exp(rest - top);
  double sum = far;
  for (float score : desk.scores) sum += std::exp(score - top);
  const int32_t own = desk.place[answer];
  desk.loss += std::log(sum) + top - (own >= 0 ? desk.scores[own] : rest);
  desk.slope.resize(around);
  for (int64_t v = 0; v < around; ++v) {
    const float share = static_cast<float>(std::exp(desk.scores[v] - top) / sum);
    desk.slope[v] = v == own ? share - 1.0f : share > kUnlikely ? share : 0.0f;
  }
  desk.gradient[layout_.rest() + asked] += static_cast<float>(far / sum - (own < 0));
  kernels().backward(layout_, desk.hood, asked, parameters, desk.work.data(), desk.slope.data(),
                     desk.gradient.data());
}

void Questions::scores(const float* parameters, const int32_t* rows, int64_t count, float* table) {
  const std::lock_guard<std::mutex> held(busy_);
  mining::each(threads_, count, [&](int32_t thread, int64_t i) {
    Desk& desk = *desks_[thread];
    const int32_t entity = rows[2 * i], asked = rows[2 * i + 1];
    desk.look(*graph_, entity, asked, -1, layout_.layers);
    desk.score(layout_, asked, parameters);
    float* row = table + i * graph_->entities;
    std::fill_n(row, graph_->entities, parameters[layout_.rest() + asked]);
    for (size_t v = 0; v < desk.order.size(); ++v) row[desk.order[v]] = desk.scores[v];
  });
}

}  // namespace phalanx::paths
