#include "runtime/agents/token.h"

#include <fmt/format.h>

#include <span>

#include "devices/base/check.h"
#include "devices/files/secret_file.h"
#include "runtime/agents/sodium_bytes.h"

namespace troupe::runtime {

Expected<TokenKey> read_token(const std::string& path) {
  const auto text = read_secret(path, "the token");
  if (!text.ok()) return text.status();
  constexpr std::string_view blank = " \t\r\n";
  const std::size_t begin = text->find_first_not_of(blank);
  const std::size_t end = text->find_last_not_of(blank) + 1;
  const std::string_view token = begin == std::string::npos ? "" : std::string_view(*text).substr(begin, end - begin);
  if (token.size() < token_chars_least)
    return invalid(
        fmt::format("the token in {} has {} characters, and needs {} that cannot be guessed: (umask 077; "
                    "head -c 32 /dev/urandom | base64 > {})",
                    path, token.size(), token_chars_least, path));
  return key_of(token);
}

TokenKey key_of(std::string_view token) {
  REQUIRE(token.size() >= token_chars_least, token.size());
  static constexpr std::string_view use = "troupe: a job and its agents";
  TokenKey key;
  static_assert(key.size() == crypto_generichash_BYTES);
  ASSERT(::sodium_init() >= 0);
  const auto text = std::as_bytes(std::span(token)), purpose = std::as_bytes(std::span(use));
  crypto_generichash(raw(key.data()), key.size(), raw(text.data()), text.size(), raw(purpose.data()), purpose.size());
  return key;
}

std::string signature_of(std::string_view text, const TokenKey& key) {
  ASSERT(::sodium_init() >= 0);
  const auto bytes = std::as_bytes(std::span(text));
  std::array<std::byte, 32> hash;
  crypto_generichash(raw(hash.data()), hash.size(), raw(bytes.data()), bytes.size(), raw(key.data()), key.size());
  std::string hex;
  for (const std::byte b : hash) hex += fmt::format("{:02x}", std::to_integer<int>(b));
  return hex;
}

}  // namespace troupe::runtime
