// Sampling, one token an act of the fed program "sample": an actor draws the token from the logits and reports it; the
// session's side feeds it to the next act and keeps the text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/launch/app.h"

namespace troupe::lm {

/// Registers "lm.sampler", the actor that draws the next token.
void register_sampler(runtime::App& app);

/// Generates text through the fed program "sample", at the session's side. For one run of the program, which may begin
/// again.
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
  /// Drops what was drawn.
  void begin_again();

  bool finite_ = true;
  std::int64_t prompt_tokens_;
  std::size_t prompt_bytes_ = 0;
  std::vector<std::int32_t> tokens_;
  std::string text_;  // of the tokens
};

}  // namespace troupe::lm
