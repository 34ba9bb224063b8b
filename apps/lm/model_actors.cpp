// The model's own actors: the loader of text, and the actor that draws the next token.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "apps/lm/byte_tokens.h"
#include "apps/lm/data.h"
#include "apps/lm/model.h"
#include "devices/base/philox.h"

namespace troupe::lm {

namespace {

using DrawSample = Status (Corpus::*)(std::int64_t index, std::int32_t* inputs, std::int32_t* targets) const;

DrawSample draw_of(const std::string& split) {
  return split == "train" ? &Corpus::train_sample : split == "eval" ? &Corpus::eval_sample : &Corpus::text_sample;
}

/// Publishes inputs or targets of a microbatch, (B, T). Stateless: the samples are a function of (step, microbatch). A
/// step takes `batch` samples that follow the samples of the step before it; where `batch` is 0, it takes the first.
class Loader final : public actors::UserActor {
 public:
  Loader(Corpus corpus, const kernels::Attrs& attrs)
      : corpus_(std::move(corpus)), draw_(draw_of(attrs.text("split"))), inputs_(attrs.text("what") == "inputs"),
        batch_(attrs.integer("batch")), first_step_(attrs.integer("first_step")),
        other_(static_cast<std::size_t>(attrs.integer("seq"))) {}

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
    return {};
  }

 private:
  Corpus corpus_;
  DrawSample draw_;
  bool inputs_;
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

/// What is reported in place of a token where the logits are not finite.
constexpr std::int32_t no_token = -1;

/// Draws the next token from softmax(logits / temperature): Philox keyed by (seed, version, number of the drawn token).
/// Draws nothing before the prompt's last token.
class Draw final : public actors::UserActor {
 public:
  Draw(std::uint64_t seed, double temperature, std::int64_t first)
      : key_(philox_key(seed, "sampler")), temperature_(temperature), first_(first) {}

  Status act(actors::UserCall& call) override {
    if (call.microbatch < first_) return {};
    const auto& logits = call.in[0];  // (1, 1, vocab)
    const std::int64_t vocab = logits.cols();
    const float* row = logits.as<float>();
    if (!std::all_of(row, row + vocab, [](float logit) { return std::isfinite(logit); })) {
      call.report("token", {no_token});
      return {};
    }
    std::int64_t best = 0;
    for (std::int64_t i = 1; i < vocab; ++i)
      if (row[i] > row[best]) best = i;
    std::int64_t token = best;
    if (temperature_ > 0) {
      double total = 0;
      for (std::int64_t i = 0; i < vocab; ++i) total += std::exp((row[i] - row[best]) / temperature_);
      const auto random = philox(key_, static_cast<std::uint64_t>(call.microbatch - first_),
                                 static_cast<std::uint64_t>(call.step));
      double left = to_unit(random[0]) * total;
      for (token = 0; token + 1 < vocab; ++token)
        if ((left -= std::exp((row[token] - row[best]) / temperature_)) < 0) break;
    }
    call.report("token", {static_cast<double>(token)});
    return {};
  }

 private:
  std::uint64_t key_;
  double temperature_;
  std::int64_t first_;
};

Expected<std::unique_ptr<actors::UserActor>> make_draw(const actors::UserActorInfo& info) {
  return std::unique_ptr<actors::UserActor>(
      std::make_unique<Draw>(info.seed, info.attrs.real("temperature"), info.attrs.integer("first")));
}

}  // namespace

void register_actors(runtime::App& app) {
  app.actor("lm.data", make_loader);
  app.actor("lm.sampler", make_draw);
}

Sampler::Sampler(const std::string& prompt) {
  for (const std::int32_t token : encode(prompt)) add(token);
  if (tokens_.empty()) add('\n');
  prompt_tokens_ = static_cast<std::int64_t>(tokens_.size());
}

std::vector<std::byte> Sampler::feed(const std::string& name, std::int32_t microbatch, const actors::Report* last) {
  if (last) add(static_cast<std::int32_t>(last->values.at(0)));
  const std::int32_t value = name == "position" ? microbatch : tokens_.at(static_cast<std::size_t>(microbatch));
  std::vector<std::byte> bytes(sizeof value);
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

void Sampler::finish(const std::vector<actors::Report>& reports) {
  const auto want = static_cast<std::int32_t>(tokens_.size()) - 1;
  for (const auto& r : reports)
    if (r.name == "token" && r.microbatch == want) {
      add(static_cast<std::int32_t>(r.values.at(0)));
      return;
    }
}

void Sampler::add(std::int32_t token) {
  if (token == no_token) {
    finite_ = false;
    tokens_.push_back(0);  // what is fed must be a token; none of the text follows
    return;
  }
  tokens_.push_back(token);
  text_ += decode({token});
}

}  // namespace troupe::lm
