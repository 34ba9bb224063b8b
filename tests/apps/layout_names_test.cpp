// The table of layouts names ops by what the language model says of its layers: runtime/ knows no model's names.
#include <doctest/doctest.h>

#include "apps/lm/model.h"
#include "runtime/show/layout_choice.h"

using namespace troupe;

TEST_CASE("alike ops of all layers are one row of the layouts' table, by the kind that the model gives its layers") {
  lm::LmConfig c;
  c.model = {.vocab = 64, .layers = 3, .heads = 2, .kv_heads = 2, .dim = 16, .head_dim = 8, .ffn = 32, .seq = 8};
  c.schedule = {.steps = 1, .lr = 1e-3, .min_lr = 1e-4, .batch = 2, .microbatch = 1};
  const runtime::App app;
  runtime::CompileOptions o;
  o.stages = runtime::stage_meshes({1}, 2);
  const auto choices = runtime::layout_choices(lm::build_model(c, app.ops(), "corpus"), o);
  REQUIRE_MESSAGE(choices.ok(), choices.status().message());
  int layers = 0;
  for (const auto& choice : choices->choices) {
    CAPTURE(choice.ops);
    CHECK(choice.ops.find("layers.0") == std::string::npos);
    if (choice.ops == "linear model.layers.*.mlp.up_proj.weight") layers += choice.count;
  }
  CHECK(layers == 3);
}
