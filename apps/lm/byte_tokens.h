// The byte tokenizer: token = byte. Any text encodes, any sequence of tokens below 256 decodes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::lm {

inline std::vector<std::int32_t> encode(std::string_view text) {
  std::vector<std::int32_t> tokens;
  tokens.reserve(text.size());
  for (unsigned char byte : text) tokens.push_back(byte);
  return tokens;
}

/// Tokens of 256 and above (a model may have a larger vocabulary) decode to '?'.
inline std::string decode(const std::vector<std::int32_t>& tokens) {
  std::string text;
  text.reserve(tokens.size());
  for (auto token : tokens) text += token >= 0 && token < 256 ? static_cast<char>(token) : '?';
  return text;
}

}  // namespace troupe::lm
