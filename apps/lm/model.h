// The language model as a graph: Llama's blocks (RMSNorm, RoPE, grouped-query attention, SwiGLU), parameter
// names as in Hugging Face Llama. Three programs share the parameters: train, evaluate, sample.
#pragma once

#include "apps/lm/config.h"
#include "runtime/app.h"
#include "runtime/graph.h"

namespace troupe::lm {

/// Units: "embed", "layers.0" ..., "head". `text` is the plain file that the loaders read.
/// Program "evaluate" exists if eval.every > 0, "sample" if `sample` is set.
runtime::Graph build_model(const LmConfig& config, const kernels::OpSet& ops, const std::string& text, bool sample);

/// Registers the model's actors: "lm.data" (a loader) and "lm.sampler".
void register_actors(runtime::App& app);

/// Generates text through the fed program "sample": the session's side of it.
class Sampler {
 public:
  Sampler(const LmConfig& config, const std::string& prompt);
  /// What SessionOptions::feed answers.
  std::vector<std::byte> feed(const std::string& name, std::int32_t microbatch, const actors::Report* last);
  /// The last token; then the text without its prompt.
  void finish(const std::vector<actors::Report>& reports);
  std::string text() const;

 private:
  std::int64_t seq_;
  std::size_t prompt_tokens_;
  std::vector<std::int32_t> tokens_;
};

}  // namespace troupe::lm
