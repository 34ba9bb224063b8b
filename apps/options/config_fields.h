// Every key of the configuration, once: name, legal range, meaning. Internal to apps/options/config*.cpp.
#pragma once

#include <string>
#include <type_traits>
#include <vector>

#include "apps/options/config.h"

namespace troupe::lm {

/// A key of the configuration; its type is its value's.
struct Key {
  const char* name;  ///< "section.key"
  const char* meaning;
  double lo = 0, hi = 0;  ///< legal range of a number
  unsigned flags = 0;     ///< k_required, ...
};
inline constexpr unsigned k_required = 1, k_lo_open = 2, k_hi_open = 4;
inline constexpr unsigned k_number_too = 8;  // a text that may be written as an integer: dp = 2

inline constexpr double k_any_count = 9007199254740991.0;  // 2^53 - 1: exact as a double and in JSON

/// Calls visit(key, value) for every key, in the order in which they are written out.
template <class Config, class Visit>
void each_field(Config& c, Visit&& visit) {
  visit(Key{"model.vocab", "size of the vocabulary", 2, 1 << 20}, c.model.vocab);
  visit(Key{"model.layers", "transformer layers", 1, 1024, k_required}, c.model.layers);
  visit(Key{"model.heads", "attention heads", 1, 1024, k_required}, c.model.heads);
  visit(Key{"model.kv_heads", "heads of keys and values", 1, 1024}, c.model.kv_heads);
  visit(Key{"model.dim", "width of the residual stream", 2, 1 << 17, k_required}, c.model.dim);
  visit(Key{"model.head_dim", "width of one head", 2, 1024}, c.model.head_dim);
  visit(Key{"model.ffn", "hidden width of the feed-forward part", 1, 1 << 20, k_required}, c.model.ffn);
  visit(Key{"model.seq", "tokens per sequence", 1, 1 << 20, k_required}, c.model.seq);
  visit(Key{"model.tied", "share embedding and vocabulary projection"}, c.model.tied);
  visit(Key{"model.dropout", "probability of dropping a value", 0, 1, k_hi_open}, c.model.dropout);
  visit(Key{"model.rope_theta", "base of the rotary frequencies", 1, 1e9}, c.model.rope_theta);
  visit(Key{"model.norm_eps", "epsilon of RMSNorm", 0, 1, k_lo_open}, c.model.norm_eps);
  visit(Key{"model.init_std", "standard deviation of initial weights", 0, 10, k_lo_open}, c.model.init_std);

  visit(Key{"schedule.steps", "horizon of the learning rate, in steps", 1, 1e9, k_required}, c.schedule.steps);
  visit(Key{"schedule.warmup", "steps of linear warm-up", 0, 1e9}, c.schedule.warmup);
  visit(Key{"schedule.lr", "peak learning rate", 0, 10, k_required}, c.schedule.lr);
  visit(Key{"schedule.min_lr", "final learning rate", 0, 10}, c.schedule.min_lr);
  visit(Key{"schedule.batch", "sequences per step", 1, 1 << 20, k_required}, c.schedule.batch);
  visit(Key{"schedule.microbatch", "sequences per microbatch", 1, 1 << 20, k_required}, c.schedule.microbatch);
  visit(
      Key{"schedule.pipeline",
          "order of work in a pipeline: \"1f1b\", \"interleaved:V\" with V chunks of layers a stage, \"zero-bubble\""},
      c.schedule.pipeline);
  visit(Key{"schedule.ahead",
            "microbatches that a stage may have under way beyond 1F1B's, while others wait for exchanges; \"auto\": as "
            "many as make a step shorter",
            0, 0, k_number_too},
        c.schedule.ahead);

  visit(Key{"optimizer.beta1", "decay of AdamW's first moment", 0, 1, k_hi_open}, c.optimizer.beta1);
  visit(Key{"optimizer.beta2", "decay of AdamW's second moment", 0, 1, k_hi_open}, c.optimizer.beta2);
  visit(Key{"optimizer.eps", "epsilon of AdamW", 0, 1, k_lo_open}, c.optimizer.eps);
  visit(Key{"optimizer.weight_decay", "decoupled weight decay", 0, 10}, c.optimizer.weight_decay);
  visit(Key{"optimizer.clip", "largest global gradient norm, 0: off", 0, 1e6}, c.optimizer.clip);

  visit(Key{"eval.every", "steps between evaluations, 0: never", 0, 1e9}, c.eval.every);
  visit(Key{"eval.batches", "microbatches per evaluation", 1, 1e9}, c.eval.batches);
  visit(Key{"eval.fraction", "last part of the text, for evaluation only", 0, 0.5}, c.eval.fraction);

  visit(Key{"sample.tokens", "bytes to generate", 0, 1e6}, c.sample.tokens);
  visit(Key{"sample.temperature", "randomness of samples, 0: none", 0, 10}, c.sample.temperature);
  visit(Key{"sample.prompt", "text to continue"}, c.sample.prompt);

  visit(Key{"mesh.dp", "data-parallel width, \"2\" or per stage \"2/1\"", 0, 0, k_number_too}, c.mesh.dp);
  visit(Key{"mesh.pp", "pipeline stages", 1, 1026}, c.mesh.pp);
  visit(Key{"mesh.tp", "tensor-parallel width", 1, 1024}, c.mesh.tp);
  visit(Key{"mesh.zero",
            "ZeRO stage: 1 divides the optimizer's state over dp, 2 reduced gradients too, 3 parameters too", 0, 3},
        c.mesh.zero);
  visit(Key{"mesh.shared_vocabulary", "all pipeline stages divide embedding and vocabulary projection"},
        c.mesh.shared_vocabulary);

  visit(Key{"checkpoint.every", "steps between checkpoints, 0: none", 0, 1e9}, c.checkpoint.every);
  visit(Key{"checkpoint.keep", "newest checkpoints that stay", 1, 1e9}, c.checkpoint.keep);
  visit(Key{"checkpoint.keep_every", "checkpoints of steps that are multiples of it stay as well, 0: none", 0, 1e9},
        c.checkpoint.keep_every);
  visit(Key{"checkpoint.arena", "versions of the state that fit into host memory until they are on disk", 1, 64},
        c.checkpoint.arena);
  visit(Key{"checkpoint.max_failures", "failures to save in a row after which the job stops", 1, 1e9},
        c.checkpoint.max_failures);

  visit(Key{"data.fingerprint", "of the text, as a checkpoint keeps it: another text is refused"}, c.data.fingerprint);

  visit(Key{"run.seed", "seed of every random number", 0, k_any_count}, c.run.seed);
  visit(Key{"run.threads", "threads per worker", 1, 1024}, c.run.threads);
  visit(Key{"run.recovery",
            "\"slots\": the run goes on when a worker is lost, from parameters and moments that lie in memory twice; "
            "\"copies:K\": from copies of them in host memory, taken every K steps; \"off\": it ends"},
        c.run.recovery);
}

/// "an integer in 1..1024", "a number in [0, 1)", "true or false", ...
template <class T>
std::string expectation(const Key& key);

/// Ok, or "'model.layers' = 0 is out of range: expected an integer in 1..1024 (transformer layers)".
template <class T>
Status check_range(const Key& key, const T& value);

}  // namespace troupe::lm
