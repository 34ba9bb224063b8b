#include "runtime/agents/token.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <span>

#include "devices/base/check.h"
#include "runtime/agents/sodium_bytes.h"

namespace troupe::runtime {

namespace {

constexpr std::size_t token_bytes_max = 4096;

Expected<std::string> text_of(int fd, const std::string& path) {
  struct stat file {};
  if (::fstat(fd, &file) != 0) return Status(Code::io, path + ": " + std::strerror(errno));
  if (!S_ISREG(file.st_mode)) return invalid(path + " is no file: a token lies in a file of its owner's (mode 0600)");
  if (file.st_uid != ::geteuid()) return invalid(path + " is another user's: a token lies in a file of one's own");
  if ((file.st_mode & 077) != 0)
    return invalid(
        fmt::format("{} may be read or changed by others than its owner (mode {:04o}): chmod 600 it, and "
                    "draw another token if another user may have read this one",
                    path, file.st_mode & 07777));
  std::string text(token_bytes_max + 1, '\0');
  std::size_t size = 0;
  for (ssize_t n = 1; n > 0 && size < text.size(); size += static_cast<std::size_t>(n)) {
    do n = ::read(fd, text.data() + size, text.size() - size);
    while (n < 0 && errno == EINTR);
    if (n < 0) return Status(Code::io, path + ": " + std::strerror(errno));
  }
  if (size > token_bytes_max)
    return invalid(fmt::format("{} has more than {} bytes: it holds a token and nothing else", path, token_bytes_max));
  text.resize(size);
  return text;
}

}  // namespace

Expected<std::string> read_secret(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return Status(Code::io, "cannot read the token " + path + ": " + std::strerror(errno));
  auto text = text_of(fd, path);
  ::close(fd);
  return text;
}

Expected<TokenKey> read_token(const std::string& path) {
  const auto text = read_secret(path);
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

}  // namespace troupe::runtime
