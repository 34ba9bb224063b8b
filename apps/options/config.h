// The configuration of a language-model job: what a TOML file in apps/configs/ says.
//
//   TROUPE_ASSIGN(LmConfig config, load_config("apps/configs/quickstart.toml", {"schedule.lr=1e-3"}));
//
// Value types only. config_fields.h has every key with its range and meaning; reading, range checks,
// "did you mean" and writing follow from it. A loaded config is effective: it has all defaults, so run.json
// holds it as it is.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "devices/base/status.h"

namespace troupe::lm {

struct ModelConfig {
  std::int64_t vocab = 256;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  ///< default: heads
  std::int64_t dim = 0;
  std::int64_t head_dim = 0;  ///< default: dim / heads
  std::int64_t ffn = 0;
  std::int64_t seq = 0;  ///< tokens per sequence
  bool tied = false;     ///< the vocabulary projection uses the embedding's matrix
  double dropout = 0.0;
  double rope_theta = 10000.0;
  double norm_eps = 1e-5;
  double init_std = 0.02;
  bool operator==(const ModelConfig&) const = default;
};

struct ScheduleConfig {
  std::int64_t steps = 0;   ///< horizon of the learning rate; --steps changes only where the run ends
  std::int64_t warmup = 0;  ///< steps
  double lr = 0.0;
  double min_lr = 0.0;          ///< default: lr / 10
  std::int64_t batch = 0;       ///< sequences per step
  std::int64_t microbatch = 0;  ///< sequences per microbatch
  std::string pipeline = "1f1b";
  std::string ahead = "0";  ///< or "auto": Pipeline::ahead
  bool operator==(const ScheduleConfig&) const = default;
  std::int64_t microbatches() const { return batch / microbatch; }
  /// The number in `ahead`; -1: auto. REQUIRES: the configuration is valid.
  std::int32_t microbatches_ahead() const;
};

struct OptimizerConfig {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  double clip = 1.0;  ///< largest global norm of the gradient; 0: off
  bool operator==(const OptimizerConfig&) const = default;
};

struct EvalConfig {
  std::int64_t every = 0;     ///< steps; 0: never
  std::int64_t batches = 16;  ///< microbatches per evaluation
  double fraction = 0.1;      ///< last part of the text, for evaluation only
  bool operator==(const EvalConfig&) const = default;
};

struct SampleConfig {
  std::int64_t tokens = 500;
  double temperature = 0.8;  ///< 0: always the most likely byte
  std::string prompt = "\n";
  bool operator==(const SampleConfig&) const = default;
};

struct MeshConfig {
  std::string dp = "1";  ///< "2", or per pipeline stage "2/1"
  std::int64_t pp = 1;
  std::int64_t tp = 1;
  std::int64_t zero = 0;
  bool shared_vocabulary = false;  ///< all pipeline stages divide embedding and vocabulary projection
  bool operator==(const MeshConfig&) const = default;
};

struct CheckpointConfig {
  std::int64_t every = 0;         ///< steps between checkpoints, 0: none
  std::int64_t keep = 2;          ///< newest checkpoints that stay
  std::int64_t keep_every = 0;    ///< checkpoints of steps that are multiples of it stay as well; 0: none
  std::int64_t arena = 2;         ///< versions that each worker's arena holds until they are on disk
  std::int64_t max_failures = 5;  ///< failures in a row after which the job stops
  bool operator==(const CheckpointConfig&) const = default;
};

struct DataConfig {
  /// of the text (Corpus::fingerprint): a text with another one is refused; empty: any text
  std::string fingerprint;
  bool operator==(const DataConfig&) const = default;
};

struct RunConfig {
  std::int64_t seed = 1;
  std::int64_t threads = 1;      ///< per worker
  std::string recovery = "off";  ///< see parse_recovery: the run goes on when a worker is lost
  bool operator==(const RunConfig&) const = default;
};

struct LmConfig {
  ModelConfig model;
  ScheduleConfig schedule;
  OptimizerConfig optimizer;
  EvalConfig eval;
  SampleConfig sample;
  MeshConfig mesh;
  CheckpointConfig checkpoint;
  DataConfig data;
  RunConfig run;
  bool operator==(const LmConfig&) const = default;
};

/// Reads a TOML file, then applies "section.key=value" overrides (values in TOML; strings may lack quotes). `warnings`,
/// if any, gets a line for each key that once had a meaning and is ignored. Error: names the file, the line and the
/// key.
Expected<LmConfig> load_config(const std::string& path, const std::vector<std::string>& overrides = {},
                               std::vector<std::string>* warnings = nullptr);

/// The same from text; `name` stands for the file in messages.
Expected<LmConfig> parse_config(std::string_view text, const std::string& name,
                                const std::vector<std::string>& overrides = {},
                                std::vector<std::string>* warnings = nullptr);

/// The same of the configuration that a checkpoint has; it is empty in a checkpoint of another application.
Expected<LmConfig> parse_saved_config(std::string_view text, const std::string& name,
                                      const std::vector<std::string>& overrides = {},
                                      std::vector<std::string>* warnings = nullptr);

/// Error: the first key that is out of range or does not fit the other keys. Loading has called it already.
Status validate(const LmConfig& config);

/// The full effective config. to_toml reads back to an equal config.
std::string to_json(const LmConfig& config);
std::string to_toml(const LmConfig& config);

/// Number of trained values.
std::int64_t parameter_count(const ModelConfig& model);

/// Tokens of one step.
inline std::int64_t tokens_per_step(const LmConfig& config) { return config.schedule.batch * config.model.seq; }

}  // namespace troupe::lm
