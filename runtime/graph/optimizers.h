// Optimizers as ops of an update, and averages, for parameters that minimize() trains (Graph::next). Each is a few ops
// over parameters of its own: an application's optimizer is written the same way.
#pragma once

#include "runtime/graph/graph.h"

namespace troupe::runtime {

/// torch.optim.SGD (Polyak, 1964; Nesterov, 1983): m' = momentum m + g + weight_decay w; w' = w - lr m', or
/// w - lr (g + weight_decay w + momentum m').
struct Momentum {
  double momentum = 0.9, weight_decay = 0;
  bool nesterov = false;
};
/// Keeps NAME.momentum.
void use_momentum(Graph& g, Value param, const Momentum& hyper = {});

/// AdamW with hyperparameters of the parameter's own; AdamW::lr is not read: the run says it (SessionOptions::lr).
/// Keeps NAME.exp_avg and NAME.exp_avg_sq.
void use_adamw(Graph& g, Value param, const kernels::AdamW& hyper = {});

/// Muon (Jordan et al., 2024), in f32: m' = momentum m + (1 - momentum) g; u = momentum m' + (1 - momentum) g, or m';
/// w' = (1 - lr weight_decay) w - lr scale orthogonalize(u), scale = sqrt(max(1, rows / columns)). For matrices that
/// each place has whole: ZeRO leaves them so, and a model axis must not divide them. Keeps NAME.momentum.
struct Muon {
  double momentum = 0.95, weight_decay = 0.1;
  bool nesterov = true;
  std::int64_t steps = 5;  ///< of Newton and Schulz
};
/// Error: no matrix.
void use_muon(Graph& g, Value param, const Muon& hyper = {});

/// Keeps NAME.average: average' = decay average + (1 - decay) w', where w' is what AdamW makes of the parameter. It
/// begins at 0. Returns it.
Value keep_average(Graph& g, Value param, double decay);

}  // namespace troupe::runtime
