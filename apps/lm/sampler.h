// Sampling, one token a microbatch of the program "sample": an actor gives the tokens of the prompt, then those that
// were drawn, which come back to it (Graph::delay); another draws a token from the logits, and reports it to the
// session's side, which keeps the text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/launch/app.h"

namespace troupe::lm {

/// Registers "lm.text", the actor that gives each microbatch its token and position, and "lm.sampler", which draws the
/// next token.
void register_sampler(runtime::App& app);

/// The text of the program "sample", at the session's side. For one run of the program, which may begin again.
class Sampler {
 public:
  /// An empty prompt counts as a new line: the first token is drawn after another.
  explicit Sampler(const std::string& prompt);
  /// Its tokens, with which the graph is built.
  std::vector<std::int64_t> prompt() const;
  /// Takes a token (SessionOptions::on_report); one that it has already counts for nothing, but the first begins again.
  void take(const actors::Report& report);
  /// Takes those of a whole run (SessionOptions::on_closed).
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
