#include "checkpoint/catalog.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <limits>
#include <tuple>

#include "checkpoint/claim.h"

namespace troupe::checkpoint {

namespace {

/// A folder whose name ends so is being removed: no process commits there.
constexpr const char* gone = ".gone";

template <class T>
bool read_number(std::string_view text, T& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

/// Reads step and generation from a folder's name; false if it is no checkpoint's.
bool read_name(const std::string& name, CatalogEntry& entry) {
  const auto dot = name.find(".g");
  if (!name.starts_with("step-") || dot == std::string::npos) return false;
  return read_number(std::string_view(name).substr(5, dot - 5), entry.step) &&
         read_number(std::string_view(name).substr(dot + 2), entry.generation) && entry.step >= 0 &&
         folder_name(entry.step, entry.generation) == name;
}

bool has(const std::vector<DirEntry>& entries, const std::string& name) {
  return std::any_of(entries.begin(), entries.end(), [&](const DirEntry& e) { return !e.folder && e.name == name; });
}

/// Removes a folder and the files in it, not durably. Syncs the folder before it removes the first shard, also where an
/// earlier call removed the manifest: a crash leaves no manifest without its shards (CA-1 commit, CA-2 removal).
Status remove_folder(Storage& storage, const std::string& path) {
  TROUPE_ASSIGN(const auto files, storage.list(path));
  if (has(files, manifest_name)) TROUPE_TRY(storage.remove(path + "/" + manifest_name));
  TROUPE_TRY(storage.sync_dir(path));
  for (const auto& f : files)
    if (f.name != manifest_name) TROUPE_TRY(storage.remove(path + "/" + f.name));
  return storage.remove(path);
}

}  // namespace

std::string folder_name(std::int64_t step, std::uint32_t generation) {
  char text[64];
  std::snprintf(text, sizeof text, "step-%08lld.g%u", static_cast<long long>(step), generation);
  return text;
}

std::string shard_name(std::int32_t rank) {
  char text[64];
  std::snprintf(text, sizeof text, "shard-%05d.safetensors", rank);
  return text;
}

Expected<Manifest> read_manifest(Storage& storage, const std::string& path) {
  const std::string name = path + "/" + manifest_name;
  TROUPE_ASSIGN(const auto bytes, read_file(storage, name));
  auto manifest = decode_manifest(bytes);
  return manifest.ok() ? std::move(manifest) : manifest.status().in("'" + name + "'");
}

std::string checkpoints_in(Storage& storage, const std::string& path) {
  const std::string inside = path + "/checkpoints";
  const auto own = Catalog(storage, path).entries();
  if (!own.ok() || !own->empty()) return path;
  const auto there = storage.list(inside);
  return there.ok() || there.status().code() == Code::denied ? inside : path;
}

Expected<std::vector<CatalogEntry>> Catalog::entries() const {
  const auto names = storage_.list(dir_);
  if (names.status().code() == Code::not_found) return std::vector<CatalogEntry>();
  if (!names.ok()) return names.status();
  std::vector<CatalogEntry> entries;
  for (const auto& name : *names) {
    CatalogEntry entry{.folder = name.name};
    if (!name.folder || !read_name(name.name, entry)) continue;
    const auto files = storage_.list(path(name.name));
    if (files.status().code() == Code::not_found) continue;  // another process has removed it since
    if (!files.ok()) return files.status();
    entry.committed = has(*files, manifest_name);
    entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::tie(a.generation, a.step) < std::tie(b.generation, b.step);
  });
  return entries;
}

Expected<Manifest> Catalog::manifest(const std::string& folder) const {
  auto manifest = read_manifest(storage_, path(folder));
  if (!manifest.ok()) return manifest;
  if (const Stamp& stamp = manifest->stamp; folder_name(stamp.step, stamp.generation) != folder)
    return invalid(fmt::format("'{}/{}' is the manifest of {}", path(folder), manifest_name,
                               folder_name(stamp.step, stamp.generation)));
  return manifest;
}

Expected<std::unique_ptr<FolderLock>> Catalog::lock() const {
  TROUPE_TRY(make_durable_dir(storage_, dir_));
  auto lock = storage_.lock_dir(dir_);
  if (lock.status().code() == Code::unavailable)
    return Status(Code::unavailable,
                  "'" + dir_ + "' is written by another run: wait for its end, or use another folder");
  return lock;
}

Expected<Stamp> Catalog::claim(std::uint64_t job, std::uint64_t fresh) {
  TROUPE_TRY(make_durable_dir(storage_, dir_));
  TROUPE_ASSIGN(const Claim mine, next_claim(job, fresh));
  TROUPE_TRY(write_claim(storage_, dir_, mine));
  return Stamp{mine.job, mine.generation, 0};
}

Expected<Claim> Catalog::next_claim(std::uint64_t job, std::uint64_t fresh) const {
  const auto claimed = read_claim(storage_, dir_);
  if (!claimed.ok() && claimed.status().code() != Code::not_found) return claimed.status();
  TROUPE_ASSIGN(const auto all, entries());
  std::uint32_t last = claimed.ok() ? claimed->generation : 0;
  for (const auto& entry : all) last = std::max(last, entry.generation);
  if (last == std::numeric_limits<std::uint32_t>::max())
    return invalid(fmt::format("'{}' has had {} generations: use another folder", dir_, last));
  return Claim{job != 0 ? job : claimed.ok() ? claimed->job : fresh, last + 1};
}

Expected<std::optional<std::string>> Catalog::foreign(const Manifest* from) const {
  TROUPE_ASSIGN(const auto all, entries());
  for (const auto& entry : all) {
    if (!entry.committed) continue;
    if (!from || (from->stamp.step == 0 && entry.step > 0)) return std::optional(entry.folder);
    const auto read = manifest(entry.folder);
    if (read.ok() && read->stamp.job != from->stamp.job) return std::optional(entry.folder);
    if (!read.ok() && read.status().code() != Code::invalid && read.status().code() != Code::not_found)
      return read.status();
  }
  return std::optional<std::string>();
}

Expected<std::vector<std::string>> Catalog::clean(std::uint32_t mine) const { return remove_uncommitted(mine); }

Expected<std::vector<std::string>> Catalog::clean_all(const FolderLock& lock) const {
  if (lock.excludes()) return remove_uncommitted(std::nullopt);
  const auto claimed = read_claim(storage_, dir_);
  if (claimed.status().code() == Code::not_found) return std::vector<std::string>();
  if (!claimed.ok()) return claimed.status();
  return remove_uncommitted(claimed->generation);
}

Expected<std::vector<std::string>> Catalog::remove_uncommitted(std::optional<std::uint32_t> mine) const {
  std::vector<std::string> removed;
  TROUPE_ASSIGN(const auto all, entries());
  for (const auto& entry : all) {
    if (entry.committed || (mine && entry.generation >= *mine)) continue;
    // Renamed first: a process that does not know yet that it is superseded can then not commit there.
    TROUPE_TRY(storage_.rename(path(entry.folder), path(entry.folder + gone)));
    removed.push_back(entry.folder);
  }
  const auto names = storage_.list(dir_);
  if (names.status().code() == Code::not_found) return removed;
  if (!names.ok()) return names.status();
  for (const auto& name : *names) {
    CatalogEntry ignored;
    const auto stem = name.name.substr(0, name.name.rfind(gone));
    if (!name.folder || name.name != stem + gone || !read_name(stem, ignored)) continue;
    // A folder in which a user has put one of his own stays: under this name it is no checkpoint and in no run's way.
    TROUPE_ASSIGN(const auto files, storage_.list(path(name.name)));
    if (std::any_of(files.begin(), files.end(), [](const DirEntry& e) { return e.folder; })) {
      std::erase(removed, stem);
      continue;
    }
    TROUPE_TRY(remove_folder(storage_, path(name.name)));
  }
  TROUPE_TRY(storage_.sync_dir(dir_));
  return removed;
}

Status Catalog::shards_are_there(const Manifest& manifest) const {
  const std::string folder = path(folder_name(manifest.stamp.step, manifest.stamp.generation));
  TROUPE_ASSIGN(const auto files, storage_.list(folder));
  for (const auto& f : manifest.files) {
    const auto there = std::find_if(files.begin(), files.end(), [&](const DirEntry& e) { return e.name == f.name; });
    if (there == files.end()) return {Code::not_found, "'" + folder + "/" + f.name + "' is not there"};
    if (there->bytes != f.bytes)
      return invalid(fmt::format("'{}/{}' has {} bytes, {} were written", folder, f.name, there->bytes, f.bytes));
  }
  return {};
}

Status Catalog::commit(const Manifest& manifest) {
  const std::string folder = path(folder_name(manifest.stamp.step, manifest.stamp.generation));
  TROUPE_TRY(validate(manifest).in("the manifest of '" + folder + "'"));
  TROUPE_TRY(shards_are_there(manifest));
  TROUPE_ASSIGN(const auto files, storage_.list(folder));
  TROUPE_TRY(storage_.sync_dir(folder));  // the shards' names are durable before the manifest's
  TROUPE_TRY(check_claim(storage_, dir_, manifest.stamp));
  Status status = write_file(storage_, folder + "/" + manifest_name, encode(manifest));
  if (status.ok()) status = storage_.sync_dir(dir_);
  // A manifest that is written but not durable is removed: after an error nothing is committed.
  if (!status.ok() && !has(files, manifest_name)) (void)storage_.remove(folder + "/" + manifest_name);
  return status;
}

Status Catalog::remove(const std::string& folder) {
  TROUPE_TRY(remove_folder(storage_, path(folder)));
  return storage_.sync_dir(dir_);
}

Expected<std::vector<std::string>> Catalog::prune(const Retention& retention) {
  TROUPE_ASSIGN(const auto all, entries());
  std::vector<std::string> removed;
  std::int64_t kept = 0;
  for (auto entry = all.rbegin(); entry != all.rend(); ++entry) {
    if (!entry->committed) continue;
    if (kept < std::max<std::int64_t>(retention.keep, 1)) {
      const auto read = manifest(entry->folder);
      const Status whole = read.ok() ? shards_are_there(*read) : read.status();
      if (!whole.ok() && whole.code() != Code::invalid && whole.code() != Code::not_found) return whole;
      kept += whole.ok();  // a damaged one does not count, and stays until so many newer ones are whole
    } else if (retention.every <= 0 || entry->step % retention.every != 0) {
      removed.push_back(entry->folder);
    }
  }
  std::reverse(removed.begin(), removed.end());
  for (const auto& folder : removed) TROUPE_TRY(remove(folder));
  return removed;
}

}  // namespace troupe::checkpoint
