// The model's own actors: the loader of text; sampler.cpp has the one that draws the next token.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/lm/data.h"
#include "apps/lm/model.h"
#include "apps/lm/sampler.h"

namespace troupe::lm {

namespace {

using DrawSample = Status (Corpus::*)(std::int64_t index, std::int32_t* inputs, std::int32_t* targets) const;

DrawSample draw_of(const std::string& split) {
  return split == "train" ? &Corpus::train_sample : split == "eval" ? &Corpus::eval_sample : &Corpus::text_sample;
}

/// Publishes inputs or targets of a microbatch, (B, T). Stateless: the samples are a function of (step, microbatch). A
/// step takes `batch` samples that follow the samples of the step before it; where `batch` is 0, it takes the first.
/// That of the training inputs reports what it has loaded: "samples", the first and how many.
class Loader final : public actors::UserActor {
 public:
  Loader(Corpus corpus, const kernels::Attrs& attrs)
      : corpus_(std::move(corpus)), draw_(draw_of(attrs.text("split"))), inputs_(attrs.text("what") == "inputs"),
        trains_(attrs.text("split") == "train"), batch_(attrs.integer("batch")),
        first_step_(attrs.integer("first_step")), other_(static_cast<std::size_t>(attrs.integer("seq"))) {}

  Status act(actors::UserCall& call) override {
    auto& out = call.out[0];  // (B, T)
    const std::int64_t rows = out.rows(), seq = out.cols();
    const std::int64_t first = (call.step - first_step_) * batch_ + call.microbatch * call.samples_per_microbatch;
    for (std::int64_t i = 0; i < rows; ++i) {
      std::int32_t* row = out.as<std::int32_t>() + i * seq;
      std::int32_t* in = inputs_ ? row : other_.data();
      std::int32_t* targets = inputs_ ? other_.data() : row;
      TROUPE_TRY((corpus_.*draw_)(first + i, in, targets));
    }
    if (trains_ && inputs_) call.report("samples", {static_cast<double>(first), static_cast<double>(rows)});
    return {};
  }

 private:
  Corpus corpus_;
  DrawSample draw_;
  bool inputs_, trains_;
  std::int64_t batch_, first_step_;
  std::vector<std::int32_t> other_;
};

Expected<std::unique_ptr<actors::UserActor>> make_loader(const actors::UserActorInfo& info) {
  CorpusOptions o;
  o.path = info.attrs.text("path");
  o.seq = info.attrs.integer("seq");
  o.eval_fraction = info.attrs.real("eval_fraction");
  o.seed = info.attrs.integer("seed");
  o.vocab = info.attrs.integer("vocab");
  o.evaluates = info.attrs.text("split") == "eval";
  o.whole = info.attrs.text("split") == "text";
  TROUPE_ASSIGN(Corpus corpus, Corpus::open(o));
  return std::unique_ptr<actors::UserActor>(std::make_unique<Loader>(std::move(corpus), info.attrs));
}

}  // namespace

void register_actors(runtime::App& app) {
  app.actor("lm.data", make_loader);
  register_sampler(app);
}

}  // namespace troupe::lm
