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

Status write_new(const std::string& path, std::string_view text, Durability durability) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return errno_status("cannot create");
  Status status = write_all(fd, text);
  if (status.ok() && durability == Durability::synced && ::fsync(fd) != 0) status = errno_status("cannot sync");
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
  const Status status = write_new(probe, "x", Durability::synced);
  ::unlink(probe.c_str());
  return status.in(fmt::format("output folder '{}' cannot be written", dir));
}

Status write_file(const std::string& path, std::string_view text, Durability durability) {
  const std::string part = fmt::format("{}.{}.part", path, ::getpid());
  Status status = write_new(part, text, durability);
  if (status.ok() && ::rename(part.c_str(), path.c_str()) != 0) status = errno_status("cannot rename");
  if (!status.ok()) ::unlink(part.c_str());
  else if (durability == Durability::synced) sync_dir_of(path);
  return status.in(fmt::format("'{}'", path));
}

Expected<std::string> set_aside(const std::string& dir, const std::vector<std::string>& names) {
  std::error_code error;
  std::string aside;
  for (const auto& name : names) {
    if (!fs::is_regular_file(dir + "/" + name, error)) continue;
    for (int n = 1; aside.empty(); ++n) {
      const auto free = fmt::format("{}/earlier-{}", dir, n);
      if (fs::create_directory(free, error)) aside = free;
      else if (error) return Status(Code::io, fmt::format("cannot create '{}': {}", free, error.message()));
    }
    fs::rename(dir + "/" + name, aside + "/" + name, error);
    if (error)
      return Status(Code::io, fmt::format("cannot move '{}/{}' to '{}': {}", dir, name, aside, error.message()));
  }
  return aside;
}

Status write_run_json(const std::string& path, const std::string& json, Durability durability) {
  const auto value = nlohmann::ordered_json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded())
    return Status(Code::internal, fmt::format("'{}': what was to be written is not JSON", path));
  return write_file(path, value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n", durability);
}

}  // namespace troupe::report
