#include "apps/lm/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "apps/lm/byte_tokens.h"
#include "devices/base/philox.h"

namespace troupe::lm {

namespace {

/// What is reported in place of a token where the logits are not finite.
constexpr std::int32_t no_token = -1;

/// Draws the next token from softmax(logits / temperature): Philox keyed by (seed, version, number of the drawn token).
/// Draws nothing before the prompt's last token.
class Draw final : public actors::UserActor {
 public:
  Draw(std::uint64_t seed, double temperature, std::int64_t first)
      : key_(philox_key(seed, "sampler")), temperature_(temperature), first_(first) {}

  Status act(actors::UserCall& call) override {
    std::int32_t& next = *call.out[0].as<std::int32_t>();
    next = 0;
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
    next = static_cast<std::int32_t>(token);
    return {};
  }

 private:
  std::uint64_t key_;
  double temperature_;
  std::int64_t first_;
};

/// The token of each microbatch, and its position: first those of the prompt.
class Text final : public actors::UserActor {
 public:
  explicit Text(std::vector<std::int64_t> prompt) : prompt_(std::move(prompt)) {}

  Status act(actors::UserCall& call) override {
    const auto m = static_cast<std::size_t>(call.microbatch);
    *call.out[0].as<std::int32_t>() = m < prompt_.size() ? static_cast<std::int32_t>(prompt_[m])
                                                         : *call.in[0].as<std::int32_t>();
    *call.out[1].as<std::int32_t>() = call.microbatch;
    return {};
  }

 private:
  std::vector<std::int64_t> prompt_;
};

Expected<std::unique_ptr<actors::UserActor>> make_text(const actors::UserActorInfo& info) {
  const auto& attrs = info.attrs.all();
  const auto prompt = attrs.find("prompt");
  const auto* tokens = prompt == attrs.end() ? nullptr : std::get_if<std::vector<std::int64_t>>(&prompt->second);
  if (!tokens) return invalid("has no prompt: a list of tokens");
  return std::unique_ptr<actors::UserActor>(std::make_unique<Text>(*tokens));
}

Expected<std::unique_ptr<actors::UserActor>> make_draw(const actors::UserActorInfo& info) {
  return std::unique_ptr<actors::UserActor>(
      std::make_unique<Draw>(info.seed, info.attrs.real("temperature"), info.attrs.integer("first")));
}

}  // namespace

void register_sampler(runtime::App& app) {
  app.actor("lm.text", make_text);
  app.actor("lm.sampler", make_draw);
}

Sampler::Sampler(const std::string& prompt) {
  for (const std::int32_t token : encode(prompt)) add(token);
  if (tokens_.empty()) add('\n');
  prompt_tokens_ = static_cast<std::int64_t>(tokens_.size());
  prompt_bytes_ = text_.size();
}

std::vector<std::int64_t> Sampler::prompt() const { return {tokens_.begin(), tokens_.begin() + prompt_tokens_}; }

void Sampler::take(const actors::Report& report) {
  const std::int64_t at = std::int64_t{report.microbatch} + 1;
  if (report.name != "token" || at < prompt_tokens_) return;
  if (at == prompt_tokens_) begin_again();
  if (at == std::ssize(tokens_)) add(static_cast<std::int32_t>(report.values.at(0)));
}

void Sampler::finish(const std::vector<actors::Report>& reports) {
  for (const auto& r : reports) take(r);
}

void Sampler::begin_again() {
  tokens_.resize(static_cast<std::size_t>(prompt_tokens_));
  text_.resize(prompt_bytes_);
  finite_ = true;
}

void Sampler::add(std::int32_t token) {
  if (token == no_token) {
    finite_ = false;
    tokens_.push_back(0);  // what is read must be a token; none of the text follows
    return;
  }
  tokens_.push_back(token);
  text_ += decode({token});
}

}  // namespace troupe::lm
