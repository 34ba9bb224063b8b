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

void register_sampler(runtime::App& app) { app.actor("lm.sampler", make_draw); }

Sampler::Sampler(const std::string& prompt) {
  for (const std::int32_t token : encode(prompt)) add(token);
  if (tokens_.empty()) add('\n');
  prompt_tokens_ = static_cast<std::int64_t>(tokens_.size());
  prompt_bytes_ = text_.size();
}

std::vector<std::byte> Sampler::feed(const std::string& name, std::int32_t microbatch, const actors::Report* last) {
  if (microbatch == 0 && std::ssize(tokens_) > prompt_tokens_) begin_again();
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

void Sampler::begin_again() {
  tokens_.resize(static_cast<std::size_t>(prompt_tokens_));
  text_.resize(prompt_bytes_);
  finite_ = true;
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
