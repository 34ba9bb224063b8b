// The language model as a graph: Llama's blocks (RMSNorm, RoPE, grouped-query attention, SwiGLU), parameter
// names as in Hugging Face Llama. Three programs share the parameters: train, evaluate, sample. A sample is made token
// by token: its microbatches are tokens, first the tokens of the prompt, and attention keeps the keys and values of
// model.seq of them.
#pragma once

#include <cstdint>

#include "apps/options/config.h"
#include "runtime/graph/graph.h"
#include "runtime/launch/app.h"

namespace troupe::lm {

/// Units: "embed", "layers.0" ..., "head"; with mesh.shared_vocabulary also the shared ones "vocabulary.in" and
/// "vocabulary.out". `text` is the plain file that the loaders read. Program "evaluate" exists if eval.every > 0,
/// "sample" if `prompt_tokens` > 0.
runtime::Graph build_model(const LmConfig& config, const kernels::OpSet& ops, const std::string& text,
                           std::int64_t prompt_tokens);
/// What an evaluation by itself reads of a text, eval.batches microbatches a step, one step after the other: the
/// windows that are held out, in the order in which each evaluation of a training run reads them, or all of it.
enum class EvaluatedPart : std::uint8_t { held_out, all };
/// Program "evaluate" alone: no gradients, no optimizer. `first_step`: of the job.
runtime::Graph build_evaluator(const LmConfig& config, const kernels::OpSet& ops, const std::string& text,
                               EvaluatedPart part, std::int64_t first_step);
/// Program "sample" alone: no text, no gradients, no optimizer. REQUIRES: `prompt_tokens` > 0.
runtime::Graph build_sampler(const LmConfig& config, const kernels::OpSet& ops, std::int64_t prompt_tokens);

/// Registers the model's actors: "lm.data" (a loader) and "lm.sampler".
void register_actors(runtime::App& app);

/// Generates text through the fed program "sample", at the session's side. For one run of the program.
class Sampler {
 public:
  /// An empty prompt counts as a new line: the first token is drawn after another.
  explicit Sampler(const std::string& prompt);
  std::int64_t prompt_tokens() const { return prompt_tokens_; }
  /// The payload for SessionOptions::feed: an i32, the token or the position of `microbatch`. Keeps the token of
  /// `last`.
  std::vector<std::byte> feed(const std::string& name, std::int32_t microbatch, const actors::Report* last);
  /// Takes the reports of SessionOptions::on_closed: they have the last token.
  void finish(const std::vector<actors::Report>& reports);
  /// The prompt and the text drawn so far.
  const std::string& text() const { return text_; }
  /// False once the model has given logits that are not finite: no text comes any more.
  bool finite() const { return finite_; }

 private:
  void add(std::int32_t token);

  bool finite_ = true;
  std::int64_t prompt_tokens_;
  std::vector<std::int32_t> tokens_;
  std::string text_;  // of the tokens
};

}  // namespace troupe::lm
