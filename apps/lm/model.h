// The language model as a graph: Llama's blocks (RMSNorm, RoPE, grouped-query attention, SwiGLU), parameter
// names as in Hugging Face Llama. Three programs share the parameters: train, evaluate, sample. A sample is made token by
// token: its microbatches are tokens, first those of the prompt, and attention keeps the keys and values of model.seq of them.
#pragma once

#include "apps/lm/config.h"
#include "runtime/app.h"
#include "runtime/graph.h"

namespace troupe::lm {

/// Units: "embed", "layers.0" ..., "head". `text` is the plain file that the loaders read.
/// Program "evaluate" exists if eval.every > 0, "sample" if it goes on from a prompt of so many tokens, not 0.
runtime::Graph build_model(const LmConfig& config, const kernels::OpSet& ops, const std::string& text, std::int64_t prompt_tokens);
/// Program "sample" alone: no text, no gradients, no optimizer.
runtime::Graph build_sampler(const LmConfig& config, const kernels::OpSet& ops, std::int64_t prompt_tokens);

/// Registers the model's actors: "lm.data" (a loader) and "lm.sampler".
void register_actors(runtime::App& app);

/// Generates text through the fed program "sample": the session's side of it.
class Sampler {
 public:
  /// An empty prompt is a new line: there must be something to go on from.
  explicit Sampler(const std::string& prompt);
  std::int64_t prompt_tokens() const { return prompt_tokens_; }
  /// What SessionOptions::feed answers.
  std::vector<std::byte> feed(const std::string& name, std::int32_t microbatch, const actors::Report* last);
  /// What SessionOptions::on_closed is told: the last token.
  void finish(const std::vector<actors::Report>& reports);
  /// Prompt and what has followed so far.
  const std::string& text() const { return text_; }

 private:
  void add(std::int32_t token);

  std::int64_t prompt_tokens_;
  std::vector<std::int32_t> tokens_;
  std::string text_;                   // of the tokens
};

}  // namespace troupe::lm
