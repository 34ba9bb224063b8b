// From the command line to a plan: configuration and mesh checked together, the model compiled, its step predicted.
#pragma once

#include "apps/lm/job.h"
#include "runtime/layout_choice.h"
#include "runtime/token_game.h"

namespace troupe::lm {

/// What was asked for, complete and legal.
struct Prepared {
  LmConfig config;
  MeshSpec mesh;
  std::vector<comm::Throttle> throttle;
  CostModel costs;                         ///< with the throttle
  std::string costs_from = "built-in";     ///< or the file
  std::vector<std::string> warnings;       ///< of the configuration: see load_config
};

/// What to tell who trains or imports a model with tokens that are no bytes; empty: it has none.
std::string tokens_warning(const LmConfig& config);

/// Error: the model has tokens that are no bytes, so its samples have no text.
Status check_sampled(const LmConfig& config);

/// On an error, `code` is the exit code for it. Without a path in the arguments the configuration is `saved`, a checkpoint's.
Expected<Prepared> prepare(const JobArguments& arguments, int& code, const std::string& saved = "");

/// Which layouts along model axes the plan takes, and what others would cost.
Expected<runtime::LayoutChoices> explain_layouts(const runtime::App& app, const Prepared& prepared);

/// `text`: the plain file that the plan's loaders read. With program "sample" if `prompt_tokens` is not 0.
Expected<runtime::Plan> make_plan(const runtime::App& app, const Prepared& prepared, const std::string& text, std::int64_t prompt_tokens);
/// Program "sample" alone, on one replica.
Expected<runtime::Plan> make_sample_plan(const runtime::App& app, const Prepared& prepared, std::int64_t prompt_tokens);

/// A training step by itself, timed by the cost model, and the places that were played.
struct Predicted {
  runtime::GameResult game;
  std::vector<runtime::LocalPlan> places;
};
/// Of a plan that verify() has accepted: its structure is not checked again.
Expected<Predicted> predict(const runtime::Plan& plan);

}  // namespace troupe::lm
