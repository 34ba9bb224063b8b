#include "apps/report/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

namespace troupe::report {
namespace fs = std::filesystem;

namespace {

Status errno_status(const std::string& what) {
  return {errno == ENOSPC ? Code::exhausted : Code::io, fmt::format("{}: {}", what, std::strerror(errno))};
}

Status write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_status("cannot write");
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return {};
}

Status write_and_sync(const std::string& path, std::string_view text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return errno_status("cannot create");
  Status status = write_all(fd, text);
  if (status.ok() && ::fsync(fd) != 0) status = errno_status("cannot sync");
  if (::close(fd) != 0 && status.ok()) status = errno_status("cannot close");
  return status;
}

void sync_dir_of(const std::string& path) {
  const auto parent = fs::path(path).parent_path();
  const int fd = ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);  // a file system without directory sync loses at most the newest name
  ::close(fd);
}

}  // namespace

Status prepare_output_dir(const std::string& dir) {
  std::error_code error;
  if (fs::exists(dir, error) && !fs::is_directory(dir, error))
    return invalid(fmt::format("output folder '{}' is a file; name a folder", dir));
  fs::create_directories(dir, error);
  if (error) return Status(Code::io, fmt::format("cannot create output folder '{}': {}", dir, error.message()));
  const std::string probe = fmt::format("{}/.write-test-{}", dir, ::getpid());
  const Status status = write_and_sync(probe, "x");
  ::unlink(probe.c_str());
  return status.in(fmt::format("output folder '{}' cannot be written", dir));
}

Status write_file(const std::string& path, std::string_view text) {
  const std::string part = fmt::format("{}.{}.part", path, ::getpid());
  Status status = write_and_sync(part, text);
  if (status.ok() && ::rename(part.c_str(), path.c_str()) != 0) status = errno_status("cannot rename");
  if (status.ok()) sync_dir_of(path);
  else ::unlink(part.c_str());
  return status.in(fmt::format("'{}'", path));
}

Status write_run_json(const std::string& path, const std::string& json) {
  const auto value = nlohmann::ordered_json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return Status(Code::internal, fmt::format("'{}': what was to be written is not JSON", path));
  return write_file(path, value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace troupe::report
