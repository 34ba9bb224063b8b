// The byte tokenizer: token = byte.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::lm {

/// Tokens that have a text.
inline constexpr std::int64_t byte_tokens = 256;

inline std::vector<std::int32_t> encode(std::string_view text) {
  std::vector<std::int32_t> tokens;
  tokens.reserve(text.size());
  for (unsigned char byte : text) tokens.push_back(byte);
  return tokens;
}

/// A token that is no byte is '?'.
inline std::string decode(const std::vector<std::int32_t>& tokens) {
  std::string text;
  text.reserve(tokens.size());
  for (auto token : tokens) text += token >= 0 && token < byte_tokens ? static_cast<char>(token) : '?';
  return text;
}

}  // namespace troupe::lm
