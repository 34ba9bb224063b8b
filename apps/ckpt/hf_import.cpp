#include "apps/ckpt/hf_import.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>

#include "apps/ckpt/hf_files.h"
#include "apps/job/planning.h"
#include "checkpoint/catalog.h"
#include "checkpoint/cut.h"
#include "devices/host_memory.h"
#include "runtime/elastic/exit_codes.h"

namespace troupe::ckpt {

using checkpoint::ShardEntry;
using checkpoint::ShardRecord;

namespace {

/// The schedule without --config: a short run at a low rate, for weights that are trained already.
constexpr const char* default_config = "[schedule]\nsteps = 1000\nwarmup = 50\nlr = 2e-5\nbatch = 8\nmicrobatch = 1\n";

struct Config {
  lm::LmConfig config;
  std::string text;  ///< for the manifest
  std::vector<std::string> warnings;
};

/// config.json's model, and everything else from --config. On an error, `code` is the exit code for it.
Expected<Config> config_of(Storage& storage, const ImportArguments& a, int& code) {
  code = runtime::exit_checkpoint;
  const std::string path = a.from + "/config.json";
  TROUPE_ASSIGN(const auto bytes, read_file(storage, path));
  TROUPE_ASSIGN(const auto model, read_llama_config({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path));
  const auto overrides = overrides_of(model);
  std::string text = "[model]\n";
  for (const auto& o : overrides) text += o.substr(std::strlen("model.")) + "\n";
  // and no more keys: defaults that follow from other keys still do when a user sets those other keys
  text += default_config;
  TROUPE_ASSIGN(auto config, lm::parse_config(text, "the model of '" + path + "'"));
  if (a.config.empty()) return Config{std::move(config), std::move(text), {}};
  code = runtime::exit_usage;
  std::vector<std::string> warnings;
  TROUPE_ASSIGN(config, lm::load_config(a.config, overrides, &warnings));
  text = to_toml(config);
  return Config{std::move(config), std::move(text), std::move(warnings)};
}

/// All parameters, one after the other, in pieces of whole rows.
std::vector<ShardEntry> entries_of(const std::vector<Parameter>& model) {
  std::vector<ShardEntry> entries;
  for (const auto& p : model)
    for (auto& extent : checkpoint::cut_rows(Extent::whole(p.shape), size_of(DType::f32)))
      entries.push_back({p.name, checkpoint::TensorKind::parameter, DType::f32, p.shape, std::move(extent), 0});
  return entries;
}

/// Writes the one shard, however many files the tensors come from. On an error, `code` says which side was at fault, or
/// that it was an interruption.
Expected<ShardRecord> write_shard(Storage& storage, const std::string& folder, const checkpoint::Stamp& stamp,
                                  const std::vector<Parameter>& model, HfFiles& files, int& code,
                                  const GiveUp& give_up) {
  code = runtime::exit_output;
  auto entries = entries_of(model);
  const std::int64_t data_bytes = checkpoint::lay_out(entries);
  const auto header = checkpoint::shard_header(entries, stamp);
  const std::int64_t data_offset = std::ssize(header);
  ShardRecord record{{checkpoint::shard_name(0), data_offset + data_bytes, data_offset,
                      checkpoint::checksum(header.data(), data_offset)},
                     {}};
  TROUPE_ASSIGN(const auto file, storage.create(folder + "/" + record.file.name, Access::direct));
  TROUPE_TRY(file->reserve(record.file.bytes));
  TROUPE_TRY(file->write_at(0, header.data(), data_offset));
  std::int64_t room = 0;
  for (const auto& e : entries) room = std::max(room, aligned(e.bytes(), storage_alignment));
  TROUPE_ASSIGN(const auto buffer, allocate_host(static_cast<std::size_t>(room)));
  std::size_t parameter = 0;
  for (const auto& e : entries) {
    if (record.tensors.empty() || record.tensors.back().parameter != e.parameter) {
      parameter = record.tensors.size();
      record.tensors.push_back({e.parameter, e.kind, e.dtype, e.shape, {}});
    }
    code = runtime::exit_interrupted;
    TROUPE_TRY(give_up());
    code = runtime::exit_checkpoint;
    TROUPE_TRY(files.read(parameter, e.extent.dims[0], buffer->data()));
    code = runtime::exit_output;
    const std::int64_t bytes = e.bytes(), whole = aligned(bytes, storage_alignment);
    std::memset(buffer->data() + bytes, 0, static_cast<std::size_t>(whole - bytes));
    TROUPE_TRY(file->write_at(data_offset + e.offset, buffer->data(), whole));
    record.tensors.back().extents.push_back(
        {e.extent, 0, data_offset + e.offset, checkpoint::block_checksums(buffer->data(), bytes)});
  }
  TROUPE_TRY(file->sync());
  return record;
}

/// Takes back what an import has made in and above a folder of checkpoints, unless keep() is called: its checkpoint,
/// its claim, in whose place the earlier claim is written, and the folders that were missing, where they are empty.
class TakeBack {
 public:
  /// `job`: the import's own number.
  TakeBack(Storage& storage, checkpoint::Catalog catalog, std::uint64_t job)
      : storage_(storage), catalog_(std::move(catalog)), job_(job) {}
  TakeBack(const TakeBack&) = delete;
  ~TakeBack() {
    if (kept_) return;
    if (!checkpoint_.empty()) (void)catalog_.remove(checkpoint_);
    // Another process may have claimed the folder since, on another machine.
    if (const auto now = read_file(storage_, claim_path()); now.ok() && is_ours(*now))
      (void)(claim_ ? write_file(storage_, claim_path(), *claim_) : storage_.remove(claim_path()));
    for (const auto& folder : missing_) (void)storage_.remove(folder);  // the deepest first; refused if not empty
  }
  /// Looks which folders are missing. REQUIRES: called once, before the import makes any.
  Status begin() {
    for (std::string at = catalog_.dir(); at != "." && at != "/"; at = folder_of(at)) {
      const Status there = storage_.list(at).status();
      if (there.code() != Code::not_found) return there.code() == Code::denied ? Status() : there;
      missing_.push_back(at);
    }
    return {};
  }
  /// Takes the folder's lock, which is released when all is taken back, and looks at the claim: before the lock was had
  /// another process might have replaced it. REQUIRES: called once, before the import claims the folder.
  Status holds(std::unique_ptr<FolderLock> lock) {
    lock_ = std::move(lock);
    auto claim = read_file(storage_, claim_path());
    if (claim.status().code() == Code::not_found) return {};
    TROUPE_ASSIGN(claim_, std::move(claim));
    return {};
  }
  void makes(std::string checkpoint) { checkpoint_ = std::move(checkpoint); }
  void keep() { kept_ = true; }

 private:
  std::string claim_path() const { return catalog_.path(checkpoint::claim_name); }
  bool is_ours(const std::vector<std::byte>& claim) const {
    const std::string_view text(reinterpret_cast<const char*>(claim.data()), claim.size());
    return text.find(checkpoint::hexadecimal(job_)) != std::string_view::npos;
  }

  Storage& storage_;
  checkpoint::Catalog catalog_;
  const std::uint64_t job_;
  std::optional<std::vector<std::byte>> claim_;  ///< that was there before
  std::vector<std::string> missing_;
  std::string checkpoint_;  ///< folder's name; empty: none is made yet
  bool kept_ = false;
  std::unique_ptr<FolderLock> lock_;
};

}  // namespace

Expected<Imported> import_hf(Storage& storage, const kernels::OpSet& ops, const ImportArguments& a, int& code,
                             const GiveUp& give_up) {
  TROUPE_ASSIGN(auto chosen, config_of(storage, a, code));
  const lm::LmConfig& config = chosen.config;
  code = runtime::exit_checkpoint;
  const auto model = parameters_of(config, ops);
  TROUPE_ASSIGN(auto files, HfFiles::open(storage, a.from, model));

  code = runtime::exit_output;
  checkpoint::Catalog catalog(storage, a.out);
  TakeBack take_back(storage, catalog, a.job);
  TROUPE_TRY(take_back.begin());
  TROUPE_ASSIGN(auto lock, catalog.lock());
  TROUPE_TRY(take_back.holds(std::move(lock)));
  TROUPE_ASSIGN(const auto there, catalog.entries());
  if (std::any_of(there.begin(), there.end(), [](const auto& e) { return e.committed; }))
    return invalid("'" + a.out + "' has checkpoints already: name another folder");
  TROUPE_ASSIGN(const auto names, storage.list(a.out));
  if (std::any_of(names.begin(), names.end(), [](const auto& e) { return e.folder && e.name == "checkpoints"; }))
    return invalid("'" + a.out + "' is the output folder of a run, whose checkpoints are in '" + a.out +
                   "/checkpoints': name another folder");
  checkpoint::Manifest head;
  TROUPE_ASSIGN(head.stamp, catalog.claim(a.job, a.job));
  TROUPE_TRY(catalog.clean(head.stamp.generation).status());
  head.seed = static_cast<std::uint64_t>(config.run.seed);
  head.config = std::move(chosen.text);

  const checkpoint::Stamp stamp = head.stamp;
  const std::string name = checkpoint::folder_name(0, stamp.generation), folder = catalog.path(name);
  take_back.makes(name);
  TROUPE_TRY(storage.make_dir(folder));
  TROUPE_ASSIGN(const auto record, write_shard(storage, folder, stamp, model, files, code, give_up));
  code = runtime::exit_interrupted;
  TROUPE_TRY(give_up());
  code = runtime::exit_output;
  TROUPE_ASSIGN(const auto manifest, checkpoint::merge(std::move(head), {record}));
  TROUPE_TRY(catalog.commit(manifest));
  take_back.keep();
  if (auto warning = files.warning(); !warning.empty()) chosen.warnings.push_back(std::move(warning));
  if (auto warning = lm::tokens_warning(config); !warning.empty()) chosen.warnings.push_back(std::move(warning));
  return Imported{folder, lm::parameter_count(config.model), files.widened(), std::move(chosen.warnings)};
}

}  // namespace troupe::ckpt
