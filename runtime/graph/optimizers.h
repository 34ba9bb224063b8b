// Optimizers as ops of an update, and averages, for parameters that minimize() trains (Graph::next). Each is a few ops
// over parameters of its own: an application's optimizer is written the same way. Weight decay is for parameters that
// Graph::param has declared so.
#pragma once

#include "runtime/graph/graph.h"

namespace troupe::runtime {

/// torch.optim.SGD (Polyak, 1964; Nesterov, 1983): m' = momentum m + g + weight_decay w; w' = w - lr m', or
/// w - lr (g + weight_decay w + momentum m').
struct Momentum {
  double momentum = 0.9, weight_decay = 0;
  bool nesterov = false;
  double lr_scale = 1;  ///< times the learning rate of the run
};
/// Keeps NAME.momentum.
void use_momentum(Graph& g, Value param, const Momentum& hyper = {});

/// AdamW with hyperparameters of the parameter's own; AdamW::lr is not read: the run says it (SessionOptions::lr).
/// Keeps NAME.exp_avg and NAME.exp_avg_sq.
void use_adamw(Graph& g, Value param, const kernels::AdamW& hyper = {}, double lr_scale = 1);

/// Muon (Jordan et al., 2024), in f32: m' = momentum m + (1 - momentum) g; u = momentum m' + (1 - momentum) g, or m';
/// w' = (1 - lr weight_decay) w - lr scale orthogonalize(u), scale = sqrt(max(1, rows / columns)). For matrices that
/// each place has whole: ZeRO leaves them so, and a model axis must not divide them. Keeps NAME.momentum.
struct Muon {
  double momentum = 0.95, weight_decay = 0.1;
  bool nesterov = true;
  std::int64_t steps = 5;  ///< of Newton and Schulz
  double lr_scale = 1;     ///< times the learning rate of the run, which is that of the parameters with AdamW, too
};
/// Error: no matrix.
void use_muon(Graph& g, Value param, const Muon& hyper = {});

/// Keeps NAME.average, as torch.optim.swa_utils does: after the first update w', then decay average + (1 - decay) w',
/// where w' is the parameter's next version, whatever makes it. Returns the average, which other programs may read.
Value keep_average(Graph& g, Value param, double decay);

}  // namespace troupe::runtime
