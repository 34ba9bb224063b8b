#include "devices/files/secret_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace troupe {

namespace {

constexpr std::size_t secret_bytes_max = 4096;

Expected<std::string> secret_of(int fd, const std::string& path, const std::string& what) {
  struct stat file {};
  if (::fstat(fd, &file) != 0) return Status(Code::io, path + ": " + std::strerror(errno));
  if (!S_ISREG(file.st_mode))
    return invalid(path + " is no file: " + what + " lies in a file of its owner's (mode 0600)");
  if (file.st_uid != ::geteuid()) return invalid(path + " is another user's: " + what + " lies in a file of one's own");
  if ((file.st_mode & 077) != 0) {
    char mode[8];
    std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(file.st_mode & 07777));
    return invalid(path + " may be read or changed by others than its owner (mode " + mode +
                   "): chmod 600 it, and draw another secret if another user may have read this one");
  }
  std::string text(secret_bytes_max + 1, '\0');
  std::size_t size = 0;
  for (ssize_t n = 1; n > 0 && size < text.size(); size += static_cast<std::size_t>(n)) {
    do n = ::read(fd, text.data() + size, text.size() - size);
    while (n < 0 && errno == EINTR);
    if (n < 0) return Status(Code::io, path + ": " + std::strerror(errno));
  }
  if (size > secret_bytes_max)
    return invalid(path + " has more than " + std::to_string(secret_bytes_max) + " bytes: it holds " + what +
                   " and nothing else");
  text.resize(size);
  return text;
}

}  // namespace

Expected<std::string> read_secret(const std::string& path, const std::string& what) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return Status(Code::io, "cannot read " + what + " in " + path + ": " + std::strerror(errno));
  auto text = secret_of(fd, path, what);
  ::close(fd);
  return text;
}

}  // namespace troupe
