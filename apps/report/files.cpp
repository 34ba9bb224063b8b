#include "apps/report/files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
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

/// What the temporary file's name has behind the file's. No lock covers a file of costs, or that of plan --dot: each
/// process that writes it has a temporary file of its own.
std::string part() { return fmt::format(".{}.part", ::getpid()); }

}  // namespace

Status prepare_output_dir(Storage& storage, const std::string& dir) {
  if (storage.open(dir, Access::buffered).ok())
    return invalid(fmt::format("output folder '{}' is a file; name a folder", dir));
  TROUPE_TRY(make_durable_dir(storage, dir).in(fmt::format("cannot create output folder '{}'", dir)));
  const SignalsWait until_removed;
  const std::string probe = fmt::format("{}/.write-test-{}", dir, ::getpid());
  const std::byte byte{};
  const Status status = troupe::write_file(storage, probe, {&byte, 1});
  (void)storage.remove(probe);  // not there where the writing has failed
  return status.in(fmt::format("output folder '{}' cannot be written", dir));
}

Status write_file(const std::string& name, std::string_view text, Durability durability) {
  std::error_code error;
  if (stays(fs::status(name, error))) {
    std::ofstream out(name, std::ios::binary);
    return out << text << std::flush ? Status() : Status(Code::io, fmt::format("'{}': cannot be written", name));
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
