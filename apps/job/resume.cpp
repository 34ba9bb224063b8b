#include "apps/job/resume.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "apps/options/config_fields.h"
#include "devices/base/text_table.h"

namespace troupe::lm {

namespace {

enum class Change { refused_model, refused_data, told, free };

/// The consequence of a key whose value differs from its value in the checkpoint's run.
Change change_of(const std::string& key) {
  auto in = [&](std::initializer_list<const char*> keys) {
    return std::find(keys.begin(), keys.end(), key) != keys.end();
  };
  if (in({"model.seq", "run.seed", "schedule.batch", "eval.fraction", "data.fingerprint"})) return Change::refused_data;
  if (in({"model.dropout", "schedule.microbatch"})) return Change::told;
  if (in({"model.init_std"})) return Change::free;  // of initial weights, which no resumed run uses
  if (key.rfind("model.", 0) == 0) return Change::refused_model;
  return key.rfind("optimizer.", 0) == 0 || key.rfind("schedule.", 0) == 0 ? Change::told : Change::free;
}

struct Difference {
  std::string key, before, after;
  std::string text() const { return fmt::format("'{}' was {} and is {}", key, before, after); }
};

std::vector<Difference> differences(const LmConfig& saved, const LmConfig& now) {
  std::vector<Difference> all;
  each_field(saved, [&](const Key& key, const auto& value) {
    all.push_back({key.name, fmt::format("{}", value), {}});
  });
  std::size_t i = 0;
  each_field(now, [&](const Key&, const auto& value) { all[i++].after = fmt::format("{}", value); });
  std::erase_if(all, [](const Difference& d) { return d.before == d.after; });
  return all;
}

/// A path that ends in the name of its folder, which "." and "checkpoints/.." do not.
std::string with_name(const std::string& path) {
  if (const std::string last = base_of(path); last != "." && last != "..") return path;
  std::error_code error;
  const auto named = std::filesystem::weakly_canonical(path, error);
  return error ? path : named.string();
}

Status another_model(const Difference& d) { return invalid(d.text() + ": the checkpoint is of another model"); }

}  // namespace

Expected<Resume> Resume::find(Storage& storage, const std::string& what, For use) {
  Resume out(storage);
  const auto lock = [&]() -> Status {
    if (use == For::training) {
      TROUPE_ASSIGN(out.lock_, checkpoint::Catalog(storage, out.dir_).lock());
    }
    return {};
  };
  std::string path = what;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  path = with_name(path);
  if (const auto inside = storage.list(path); !inside.ok()) {
    return inside.status();
  } else if (std::any_of(inside->begin(), inside->end(),
                         [](const DirEntry& e) { return e.name == checkpoint::manifest_name; })) {
    out.named_ = true;
    out.dir_ = folder_of(path);
    out.folders_ = {base_of(path)};
    TROUPE_TRY(lock());
    return out;
  }
  out.dir_ = path = checkpoint::checkpoints_in(storage, path);
  TROUPE_TRY(lock());
  // A run that saves may remove the only checkpoint of a listing before the listing comes to the newer one.
  constexpr int listings_max = 8;
  for (int i = 0; i < listings_max && out.folders_.empty(); ++i) {
    TROUPE_ASSIGN(const auto entries, checkpoint::Catalog(storage, path).entries());
    for (const auto& e : entries)
      if (e.committed) out.folders_.push_back(e.folder);
  }
  if (out.folders_.empty())
    return Status(Code::not_found, fmt::format("there is no checkpoint in '{}': name a folder that has some", path));
  return out;
}

Status Resume::only(std::int64_t step) {
  const std::string where = named_ && !folders_.empty() ? dir_ + "/" + folders_.front() : dir_;
  TROUPE_ASSIGN(const auto entries, checkpoint::Catalog(*storage_, dir_).entries());
  std::erase_if(folders_, [&](const std::string& folder) {
    return std::none_of(entries.begin(), entries.end(),
                        [&](const checkpoint::CatalogEntry& e) { return e.folder == folder && e.step == step; });
  });
  if (!folders_.empty()) return {};
  return Status(Code::not_found, fmt::format("there is no checkpoint of step {} in '{}'", step, where));
}

Expected<ResumePoint> Resume::next() {
  const checkpoint::Catalog catalog(*storage_, dir_);
  while (!folders_.empty()) {
    current_ = folders_.back();
    folders_.pop_back();
    auto manifest = catalog.manifest(current_);
    if (manifest.ok()) return ResumePoint{catalog.path(current_), *std::move(manifest)};
    reject(manifest.status());
    if (!lock_ && is_outrun()) break;  // what is older is removed first: see read_checkpoint
  }
  return Status(Code::damaged, first_.message());
}

std::string Resume::run_folder() const {
  const std::string dir = with_name(dir_);  // of "step-00000010.g1", ".": named from within
  return base_of(dir) == "checkpoints" ? folder_of(dir) : "runs/" + base_of(dir);
}

void Resume::reject(const Status& why) {
  if (first_.ok()) first_ = Status(Code::damaged, why.message());
  if (named_) return;
  notes_.push_back(fmt::format("checkpoint '{}' is passed over: {}", current_, why.message()));
}

bool Resume::is_outrun() const {
  if (named_ || current_.empty()) return false;
  const auto files = storage_->list(checkpoint::Catalog(*storage_, dir_).path(current_));
  if (!files.ok()) return files.status().code() == Code::not_found;
  return std::none_of(files->begin(), files->end(),
                      [](const DirEntry& e) { return e.name == checkpoint::manifest_name; });
}

Status check_resumable(const LmConfig& saved, const LmConfig& now, std::vector<std::string>& notes) {
  for (const auto& d : differences(saved, now)) {
    switch (change_of(d.key)) {
      case Change::refused_model: return another_model(d);
      case Change::refused_data:
        if (d.key == "data.fingerprint" && (d.before.empty() || d.after.empty())) break;
        return invalid(
            d.text() +
            ": the run would go on with other samples than it began with; begin a new run from the checkpoint's "
            "weights instead (troupe ckpt export, import)");
      case Change::told: notes.push_back(d.text()); break;
      case Change::free: break;
    }
  }
  return {};
}

Status check_model(const LmConfig& saved, const LmConfig& now) {
  for (const auto& d : differences(saved, now)) {
    if (d.key == "model.seq" && now.model.seq > saved.model.seq)
      return invalid(d.text() + ": the model knows no position beyond");
    if (change_of(d.key) == Change::refused_model) return another_model(d);
  }
  return {};
}

Expected<LmConfig> saved_config(const ResumePoint& point, const std::vector<std::string>& overrides,
                                std::vector<std::string>* warnings) {
  return parse_saved_config(point.manifest.config, "the configuration in '" + point.folder + "'", overrides, warnings);
}

bool goes_on_saving(const JobArguments& a, const LmConfig& config) {
  const bool told = std::any_of(a.overrides.begin(), a.overrides.end(),
                                [](const auto& o) { return o.starts_with("checkpoint.every="); });
  return !told && config.checkpoint.every == 0 && a.paced == 0;
}

std::string resumed_text(const ResumePoint& point, std::int64_t every) {
  return fmt::format(
      "resumed from '{}', step {}; {}", point.folder, point.manifest.stamp.step,
      every > 0 ? "a checkpoint every " + counted(every, "step") : "no checkpoint is saved, see --checkpoint-every");
}

bool is_weights_only(const checkpoint::Manifest& m) {
  return m.stamp.step == 0 && std::all_of(m.tensors.begin(), m.tensors.end(),
                                          [](const auto& t) { return t.kind == checkpoint::TensorKind::parameter; });
}

}  // namespace troupe::lm
