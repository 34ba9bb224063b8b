#include "devices/base/storage.h"

namespace troupe {

namespace {

constexpr std::int64_t small_file_bytes = std::int64_t{1} << 30;

Status write_part(Storage& storage, const std::string& path, std::span<const std::byte> bytes, Durability durability) {
  TROUPE_ASSIGN(const auto file, storage.create(path, Access::buffered));
  TROUPE_TRY(file->write_at(0, bytes.data(), static_cast<std::int64_t>(bytes.size())));
  return durability == Durability::synced ? file->sync() : Status();
}

/// "a/b" of "a/b//", "/" of "//".
std::string without_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

/// Makes the name of a folder durable: syncs the folder that it lies in. Where the outer folder cannot be synced,
/// because this process may not read it or its filesystem is read-only, syncs the folder itself: filesystems with a
/// journal write the name of a new folder then, too.
Status sync_name(Storage& storage, const std::string& path) {
  const Status synced = storage.sync_dir(folder_of(path));
  return synced.code() == Code::denied ? storage.sync_dir(path) : synced;
}

}  // namespace

std::string folder_of(const std::string& path) {
  const auto slash = path.find_last_of('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string base_of(const std::string& path) { return path.substr(path.find_last_of('/') + 1); }

Expected<std::vector<std::byte>> read_file(Storage& storage, const std::string& path) {
  TROUPE_ASSIGN(const auto file, storage.open(path, Access::buffered));
  TROUPE_ASSIGN(const std::int64_t size, file->size());
  if (size > small_file_bytes)
    return Status(Code::exhausted,
                  "'" + path + "' has " + std::to_string(size) + " bytes: too many to be read at once");
  std::vector<std::byte> bytes(static_cast<std::size_t>(size));
  TROUPE_TRY(file->read_at(0, bytes.data(), size));
  return bytes;
}

Status make_durable_dir(Storage& storage, const std::string& dir) {
  std::vector<std::string> missing;  // the deepest first
  std::string at = without_slashes(dir);
  for (; at != "." && at != "/"; at = without_slashes(folder_of(at))) {
    const Status found = storage.list(at).status();
    if (found.ok()) break;
    if (found.code() == Code::denied) {
      TROUPE_TRY(storage.make_dir(at));  // it is there, and a folder; or this process cannot even look for it
      break;
    }
    if (found.code() != Code::not_found) return found;
    missing.push_back(at);
  }
  if (at != "." && at != "/")
    if (const Status synced = sync_name(storage, at); !synced.ok() && synced.code() != Code::denied) return synced;
  for (auto next = missing.rbegin(); next != missing.rend(); ++next) {
    TROUPE_TRY(storage.make_dir(*next));
    TROUPE_TRY(sync_name(storage, *next));
  }
  return {};
}

Status write_file(Storage& storage, const std::string& path, std::span<const std::byte> bytes, Durability durability,
                  const std::string& part) {
  const std::string temporary = path + part;
  if (const Status left = storage.remove(temporary); !left.ok() && left.code() != Code::not_found) return left;
  Status status = write_part(storage, temporary, bytes, durability);
  if (status.ok()) status = storage.rename(temporary, path);
  if (!status.ok()) {
    (void)storage.remove(temporary);  // best effort: the next write_file removes it otherwise
    return status;
  }
  return durability == Durability::synced ? storage.sync_dir(folder_of(path)) : Status();
}

}  // namespace troupe
