#include "apps/report/files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <system_error>

#include "devices/files/file_storage.h"
#include "devices/process/end_signals.h"

namespace troupe::report {
namespace fs = std::filesystem;

namespace {

/// While it lives, a signal that ends the process waits: a temporary file is renamed or removed first.
class SignalsWait {
 public:
  SignalsWait() { signals_.pass_on(); }

 private:
  EndSignals signals_;
};

/// A device or a pipe: it is written to, and stays.
bool stays(const fs::file_status& there) {
  return fs::exists(there) && !fs::is_regular_file(there) && !fs::is_directory(there);
}

/// The file that write_file replaces where `name` is one, or a link to one.
std::string replaced_file(const std::string& name) {
  std::error_code error;
  const bool linked = fs::is_symlink(name, error) && fs::exists(name, error);
  return linked ? fs::canonical(name, error).string() : name;
}

/// What the temporary file's name has behind the file's. No lock covers a file of costs, or the file of plan --dot:
/// each process that writes it has a temporary file of its own.
std::string part() { return fmt::format(".{}.part", ::getpid()); }

/// Writes to a device or a pipe. Error: of the disk; a pipe that no process reads, where a plain open would wait for
/// one.
Status write_in_place(const std::string& name, std::string_view text) {
  const int fd = ::open(name.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (fd < 0 && errno == ENXIO)
    return {Code::io,
            fmt::format("'{}' is a pipe or a device that no process reads: remove it, or name another file", name)};
  if (fd < 0) return {Code::io, fmt::format("'{}': cannot be opened: {}", name, std::strerror(errno))};
  ::fcntl(fd, F_SETFL, 0);  // what a reader has no room for waits
  bool ok = true;
  while (ok && !text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n > 0) text.remove_prefix(static_cast<std::size_t>(n));
    else ok = n < 0 && errno == EINTR;
  }
  ok = ::close(fd) == 0 && ok;
  return ok ? Status() : Status(Code::io, fmt::format("'{}': cannot be written", name));
}

constexpr std::string_view probe_begin = ".write-test-";

/// Whether a file's name is one that prepare_output_dir writes: ".write-test-PID", once with ".tmp" behind it.
bool is_probe(std::string_view name) {
  if (!name.starts_with(probe_begin)) return false;
  name.remove_prefix(probe_begin.size());
  if (name.ends_with(".tmp")) name.remove_suffix(4);
  return !name.empty() && name.find_first_not_of("0123456789") == std::string_view::npos;
}

/// Removes what runs have left in `dir` that were killed in the midst of write_probe.
void remove_probes(Storage& storage, const std::string& dir) {
  const auto entries = storage.list(dir);
  if (!entries.ok()) return;
  for (const auto& entry : *entries)
    if (!entry.folder && is_probe(entry.name)) (void)storage.remove(dir + "/" + entry.name);
}

/// Writes a byte to a new file `path`, and leaves the file there. Another process may remove it meanwhile.
Status write_probe(Storage& storage, const std::string& path) {
  TROUPE_ASSIGN(const auto file, storage.create(path, Access::buffered));
  const std::byte byte{};
  TROUPE_TRY(file->write_at(0, &byte, 1));
  return file->sync();
}

}  // namespace

Status prepare_output_dir(Storage& storage, const std::string& dir) {
  if (storage.open(dir, Access::buffered).ok())
    return invalid(fmt::format("output folder '{}' is a file; name a folder", dir));
  TROUPE_TRY(make_durable_dir(storage, dir).in(fmt::format("cannot create output folder '{}'", dir)));
  const SignalsWait until_removed;
  remove_probes(storage, dir);
  const std::string probe = fmt::format("{}/{}{}", dir, probe_begin, ::getpid());
  const Status status = write_probe(storage, probe);
  (void)storage.remove(probe);  // not there where the writing has failed
  return status.in(fmt::format("output folder '{}' cannot be written", dir));
}

Status write_file(const std::string& name, std::string_view text, Durability durability) {
  std::error_code error;
  if (stays(fs::status(name, error))) {
    return write_in_place(name, text);
  }
  const std::string path = replaced_file(name);
  const SignalsWait until_renamed;
  FileStorage storage;
  const auto bytes = std::as_bytes(std::span(text));
  return troupe::write_file(storage, path, bytes, durability, part()).in(fmt::format("'{}'", path));
}

Status check_writable(const std::string& name) {
  std::error_code error;
  if (stays(fs::status(name, error))) return {};
  const SignalsWait until_removed;
  FileStorage storage;
  const std::string temporary = replaced_file(name) + part();
  TROUPE_TRY(storage.create(temporary, Access::buffered).status());
  return storage.remove(temporary);
}

Expected<std::string> set_aside(const std::string& dir, const std::vector<std::string>& names) {
  std::error_code error;
  std::string aside;
  for (const auto& name : names) {
    if (!fs::is_regular_file(dir + "/" + name, error)) continue;
    for (int n = 1; aside.empty(); ++n) {
      const auto free = fmt::format("{}/earlier-{}", dir, n);
      if (fs::create_directory(free, error)) aside = free;
      else if (error && error != std::errc::file_exists)  // a file, say, of that name
        return Status(Code::io, fmt::format("cannot create '{}': {}", free, error.message()));
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
