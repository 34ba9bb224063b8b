// A language model as Hugging Face describes it: config.json of LlamaForCausalLM. Parameters have the same names and
// shapes there as here, so nothing else is translated.
#pragma once

#include <string>
#include <vector>

#include "apps/options/config.h"
#include "kernels/op.h"

namespace troupe::ckpt {

/// config.json for transformers 4 and 5. The same model gives the same bytes. Dropout and init_std are not in it: Llama
/// has no dropout at our places, and a reader makes no initial weights.
std::string write_llama_config(const lm::ModelConfig& model);

/// The model that a config.json describes; dropout and init_std are the defaults. `path` stands for it in messages.
/// Error: invalid, naming the key: not a Llama, something that this program does not compute, a size out of range.
Expected<lm::ModelConfig> read_llama_config(const std::string& json, const std::string& path);

/// "model.vocab=256", ...: overrides that make a configuration (lm::load_config) one of this model. Dropout and
/// init_std stay.
std::vector<std::string> overrides_of(const lm::ModelConfig& model);

struct Parameter {
  std::string name;
  Shape shape;
};
/// The parameters of a model, in the order of their names.
std::vector<Parameter> parameters_of(const lm::LmConfig& config, const kernels::OpSet& ops);

}  // namespace troupe::ckpt
