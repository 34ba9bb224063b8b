// The language model as a graph: Llama's blocks (RMSNorm, RoPE, grouped-query attention, SwiGLU), parameter
// names as in Hugging Face Llama. Three programs share the parameters: train, evaluate, sample. In "sample" a
// microbatch is a token: actor "text" gives those of the prompt, then those that actor "sampler" has drawn, which come
// back to it (Graph::delay); attention keeps the keys and values of model.seq of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/options/config.h"
#include "runtime/graph/graph.h"
#include "runtime/launch/app.h"

namespace troupe::lm {

/// Units: "embed", "layers.0" ..., "head"; with mesh.shared_vocabulary also the shared ones "vocabulary.in" and
/// "vocabulary.out". `text` is the plain file that the loaders read. Program "evaluate" exists if eval.every > 0,
/// "sample", which goes on from `prompt` (tokens), if there is one.
runtime::Graph build_model(const LmConfig& config, const kernels::OpSet& ops, const std::string& text,
                           const std::vector<std::int64_t>& prompt = {});
/// What an evaluation by itself reads of a text, eval.batches microbatches a step, one step after the other: the
/// windows that are held out, in the order in which each evaluation of a training run reads them, or all of it.
enum class EvaluatedPart : std::uint8_t { held_out, all };
/// Program "evaluate" alone: no gradients, no optimizer. `first_step`: of the job.
runtime::Graph build_evaluator(const LmConfig& config, const kernels::OpSet& ops, const std::string& text,
                               EvaluatedPart part, std::int64_t first_step);
/// Program "sample" alone: no text, no gradients, no optimizer. A Sampler takes what it reports. REQUIRES: `prompt` has
/// a token.
runtime::Graph build_sampler(const LmConfig& config, const kernels::OpSet& ops,
                             const std::vector<std::int64_t>& prompt);

/// Registers the model's actors: "lm.data" (a loader), and those of register_sampler.
void register_actors(runtime::App& app);

}  // namespace troupe::lm
