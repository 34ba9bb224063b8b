#include "apps/ckpt/ckpt.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <thread>

#include "apps/job/job.h"
#include "apps/report/output.h"
#include "checkpoint/checkpoint_reader.h"
#include "devices/base/text_table.h"
#include "devices/cpu/thread_team.h"
#include "devices/files/file_storage.h"
#include "runtime/elastic/exit_codes.h"

namespace troupe::ckpt {

namespace {

using namespace runtime;
using checkpoint::Catalog;
using checkpoint::CatalogEntry;
using checkpoint::CheckpointReader;
using checkpoint::Manifest;

/// A DIR of the command line.
struct Folder {
  std::string path;
  bool is_checkpoint = false;  ///< a checkpoint, not a folder of checkpoints
};

struct Checkpoint {
  std::string path;
  Manifest manifest;
};

/// Error: there is no such folder, or it cannot be read.
Expected<Folder> look_at(Storage& storage, std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  TROUPE_ASSIGN(const auto inside, storage.list(path));
  const bool itself = std::any_of(inside.begin(), inside.end(),
                                  [](const DirEntry& e) { return e.name == checkpoint::manifest_name; });
  if (itself || base_of(path).starts_with("step-")) return Folder{path, true};
  return Folder{checkpoint::checkpoints_in(storage, path), false};
}

/// A checkpoint's manifest; if its folder still has a checkpoint's name, checked against it.
Expected<Manifest> manifest_of(Storage& storage, const std::string& path) {
  if (base_of(path).starts_with("step-")) return Catalog(storage, folder_of(path)).manifest(base_of(path));
  return checkpoint::read_manifest(storage, path);
}

Status none_in(const Folder& folder) {
  return {Code::not_found, fmt::format("there is no checkpoint in '{}'", folder.path)};
}

const CatalogEntry* newest_of(const std::vector<CatalogEntry>& entries) {
  const auto newest = std::find_if(entries.rbegin(), entries.rend(), [](const CatalogEntry& e) { return e.committed; });
  return newest == entries.rend() ? nullptr : &*newest;
}

/// The checkpoint that `folder` is, as the only entry of a catalog.
Expected<std::vector<CatalogEntry>> only(Storage& storage, const Folder& folder) {
  TROUPE_ASSIGN(const auto manifest, manifest_of(storage, folder.path));
  return std::vector<CatalogEntry>{{base_of(folder.path), manifest.stamp.step, manifest.stamp.generation, true}};
}

/// The checkpoint that `folder` means: itself, or the newest in it.
Expected<Checkpoint> find(Storage& storage, const Folder& folder) {
  std::string path = folder.path;
  if (!folder.is_checkpoint) {
    const Catalog catalog(storage, folder.path);
    TROUPE_ASSIGN(const auto entries, catalog.entries());
    const auto* newest = newest_of(entries);
    if (!newest) return none_in(folder);
    path = catalog.path(newest->folder);
  }
  TROUPE_ASSIGN(auto manifest, manifest_of(storage, path));
  return Checkpoint{path, std::move(manifest)};
}

Expected<CheckpointReader> open(Storage& storage, Checkpoint checkpoint) {
  return CheckpointReader::open(storage, checkpoint.path, std::move(checkpoint.manifest));
}

/// Calls f with the Folder of `dir`; returns the exit code.
template <class F>
int at(Storage& storage, const std::string& dir, F&& f) {
  const auto folder = look_at(storage, dir);
  if (folder.ok()) return f(*folder);
  std::error_code ignored;  // where `dir` is a folder, the command line was right and the disk failed
  return lm::say(folder.status(), std::filesystem::is_directory(dir, ignored) ? exit_checkpoint : exit_usage);
}

/// Calls f with the checkpoint that `dir` means; returns the exit code.
template <class F>
int with_checkpoint(Storage& storage, const std::string& dir, F&& f) {
  return at(storage, dir, [&](const Folder& folder) {
    auto found = find(storage, folder);
    return found.ok() ? f(*std::move(found)) : lm::say(found.status(), exit_checkpoint);
  });
}

using report::print;

std::string summary(const Manifest& m) {
  return fmt::format("{} of {} in {}", counted(std::ssize(m.tensors), "tensor"), human_bytes(m.bytes()),
                     counted(std::ssize(m.files), "file"));
}

TextRow row_of(Storage& storage, const Catalog& catalog, const CatalogEntry& entry, bool newest) {
  TextRow row{{entry.folder, fmt::to_string(entry.step), fmt::to_string(entry.generation), "", "", "", "not committed"},
              {}};
  if (!entry.committed) return row;
  const auto manifest = manifest_of(storage, catalog.path(entry.folder));
  if (manifest.ok()) {
    row.cells[3] = fmt::to_string(manifest->tensors.size());
    row.cells[4] = human_bytes(manifest->bytes());
    row.cells[5] = fmt::to_string(manifest->files.size());
  } else {
    row.under.push_back(manifest.status().message());
  }
  row.cells[6] = !manifest.ok() ? "cannot be read" : newest ? "newest" : "";
  return row;
}

std::string described(const checkpoint::TensorDifference& d) {
  using Kind = checkpoint::TensorDifference::Kind;
  switch (d.kind) {
    case Kind::same:
    case Kind::values: return "";
    case Kind::missing_in_a: return "only in the second";
    case Kind::missing_in_b: return "only in the first";
    case Kind::shape: return "of another shape";
    case Kind::dtype: return "of another dtype";
  }
  return "";
}

/// Differences of the training state outside of tensors (updates, exponents): a line for each.
std::vector<std::string> state_differences(const Manifest& a, const Manifest& b) {
  std::vector<std::string> lines;
  const auto updates = [](const Manifest& m) { return m.updates < 0 ? m.stamp.step : m.updates; };
  if (updates(a) != updates(b)) lines.push_back(fmt::format("updates: {} and {}", updates(a), updates(b)));
  if (a.void_steps != b.void_steps)
    lines.push_back(fmt::format("void steps in a row: {} and {}", a.void_steps, b.void_steps));
  const auto programs = [](const Manifest& m) {
    std::string text;
    for (const auto& p : m.programs)
      text += fmt::format("{}{} {} and {}", text.empty() ? "" : ", ", p.program, p.updates, p.void_steps);
    return text.empty() ? std::string("none") : text;
  };
  if (a.programs != b.programs)
    lines.push_back(fmt::format("updates and void steps of programs: {}; {}", programs(a), programs(b)));
  std::set<std::string> parameters;
  for (const auto& [x, y] : {std::pair(&a, &b), std::pair(&b, &a)})
    for (const auto& e : x->exponents)
      if (std::find(y->exponents.begin(), y->exponents.end(), e) == y->exponents.end()) parameters.insert(e.parameter);
  if (!parameters.empty())
    lines.push_back(fmt::format("exponents or peaks of gradient sums: {} differ, '{}' first", parameters.size(),
                                *parameters.begin()));
  return lines;
}

int print_differences(const std::vector<checkpoint::TensorDifference>& all, const std::vector<std::string>& state) {
  using Kind = checkpoint::TensorDifference::Kind;
  std::vector<TextRow> rows;
  for (const auto& d : all) {
    if (d.kind == Kind::same) continue;
    const bool values = d.kind == Kind::values;
    rows.push_back({{d.name, values ? fmt::to_string(d.elements) : "", values ? fmt::format("{:.6g}", d.greatest) : "",
                     described(d)},
                    {}});
  }
  const auto same = std::ssize(all) - std::ssize(rows);
  if (!rows.empty()) print(table_text({"tensor", ">elements", ">max |a-b|", ""}, rows));
  print(fmt::format("{} the same bit for bit, {} not\n", counted(same, "tensor"), rows.size()));
  for (const auto& line : state) print(line + "\n");
  return rows.empty() && state.empty() ? exit_ok : exit_differs;
}

}  // namespace

int ls_command(const Arguments& a) {
  FileStorage storage;
  return at(storage, a.dir, [&](const Folder& folder) {
    const Catalog catalog(storage, folder.is_checkpoint ? folder_of(folder.path) : folder.path);
    const auto entries = folder.is_checkpoint ? only(storage, folder) : catalog.entries();
    if (!entries.ok()) return lm::say(entries.status(), exit_checkpoint);
    if (entries->empty()) return lm::say(none_in(folder), exit_checkpoint);
    const auto newest = newest_of(*entries);
    std::vector<TextRow> rows;
    for (const auto& e : *entries) rows.push_back(row_of(storage, catalog, e, &e == newest && !folder.is_checkpoint));
    print(table_text({"checkpoint", ">step", ">generation", ">tensors", ">size", ">files", ""}, rows));
    return static_cast<int>(exit_ok);
  });
}

int show_command(const Arguments& a) {
  FileStorage storage;
  return with_checkpoint(storage, a.dir, [&](const Checkpoint& found) {
    const auto json = to_json(found.manifest, a.tensor);
    if (!json.ok()) return lm::say(json.status().in("'" + found.path + "'"), exit_usage);
    print(*json + "\n");
    return static_cast<int>(exit_ok);
  });
}

int verify_command(const Arguments& a) {
  FileStorage storage;
  return with_checkpoint(storage, a.dir, [&](Checkpoint found) {
    const std::string path = found.path;
    const auto reader = open(storage, std::move(found));
    if (!reader.ok()) return lm::say(reader.status(), exit_checkpoint);
    ThreadTeam team("verify", static_cast<int>(std::max(1u, std::thread::hardware_concurrency())), {});
    const auto wrong = reader->verify(team);
    for (const auto& line : wrong) print(line + "\n");
    if (!wrong.empty())
      return lm::say({Code::damaged, fmt::format("'{}' is damaged in {}", path, counted(std::ssize(wrong), "block"))},
                     exit_checkpoint);
    print(fmt::format("{}: {}, every block as it was written\n", path, summary(reader->manifest())));
    return static_cast<int>(exit_ok);
  });
}

int diff_command(const Arguments& a) {
  FileStorage storage;
  return with_checkpoint(storage, a.dir, [&](Checkpoint first) {
    return with_checkpoint(storage, a.other, [&](Checkpoint second) {
      const auto left = open(storage, std::move(first)), right = open(storage, std::move(second));
      for (const auto* reader : {&left, &right})
        if (!reader->ok()) return lm::say(reader->status(), exit_checkpoint);
      const auto differences = diff(*left, *right);
      return differences.ok() ? print_differences(*differences, state_differences(left->manifest(), right->manifest()))
                              : lm::say(differences.status(), exit_checkpoint);
    });
  });
}

int prune_command(const Arguments& a) {
  FileStorage storage;
  return at(storage, a.dir, [&](const Folder& folder) {
    if (folder.is_checkpoint)
      return lm::say(invalid(fmt::format("'{}' is one checkpoint: name the folder that it is in", folder.path)),
                     exit_usage);
    Catalog catalog(storage, folder.path);
    // a run that saves there prunes by its own rule, and reads what it goes on from
    const auto lock = catalog.lock();
    if (!lock.ok()) return lm::say(lock.status(), exit_checkpoint);
    const auto removed = catalog.prune(a.retention);
    if (!removed.ok()) return lm::say(removed.status(), exit_checkpoint);
    for (const auto& name : *removed) print("removed " + name + "\n");
    // of writers that are gone: runs, and a prune that was killed
    const auto unfinished = catalog.clean_all(**lock);
    if (!unfinished.ok()) return lm::say(unfinished.status(), exit_checkpoint);
    for (const auto& name : *unfinished) print("removed " + name + ", which has no manifest\n");
    return static_cast<int>(exit_ok);
  });
}

}  // namespace troupe::ckpt
