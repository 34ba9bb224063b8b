#include "apps/ckpt/hf_export.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/ckpt/hf_config.h"
#include "apps/ckpt/new_folder.h"
#include "apps/job/reading.h"
#include "apps/job/resume.h"
#include "checkpoint/checkpoint_reader.h"
#include "checkpoint/shard.h"
#include "devices/host_memory.h"
#include "runtime/elastic/exit_codes.h"

namespace troupe::ckpt {

using checkpoint::StoredTensor;
using nlohmann::json;

namespace {

/// A file of tensors, one after the other.
struct TensorFile {
  std::string name;
  std::vector<const StoredTensor*> tensors;
  std::int64_t bytes = 0;
};

/// The model's parameters, in the checkpoint's order: by name.
Expected<std::vector<const StoredTensor*>> parameters_in(const checkpoint::Manifest& manifest,
                                                         const std::vector<Parameter>& model) {
  std::vector<const StoredTensor*> out;
  for (const auto& t : manifest.tensors)
    if (t.kind == checkpoint::TensorKind::parameter) out.push_back(&t);
  for (std::size_t i = 0; i < std::max(out.size(), model.size()); ++i) {
    if (i == out.size() || (i < model.size() && model[i].name < out[i]->parameter))
      return invalid("it has no parameter '" + model[i].name + "'");
    const StoredTensor& t = *out[i];
    if (i == model.size() || t.parameter < model[i].name)
      return invalid("it has the parameter '" + t.parameter + "', which its model does not have");
    if (t.shape != model[i].shape || t.dtype != DType::f32)
      return invalid(fmt::format("'{}' is {} {}, and f32 {} in its model", t.parameter, to_string(t.dtype),
                                 to_string(t.shape), to_string(model[i].shape)));
  }
  return out;
}

std::vector<TensorFile> divide(const std::vector<const StoredTensor*>& tensors, std::int64_t file_bytes) {
  std::vector<TensorFile> files;
  for (const StoredTensor* t : tensors) {
    if (files.empty() || files.back().bytes + t->bytes() > file_bytes) files.emplace_back();
    files.back().tensors.push_back(t);
    files.back().bytes += t->bytes();
  }
  for (std::size_t i = 0; i < files.size(); ++i)
    files[i].name = files.size() == 1 ? "model.safetensors"
                                      : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
  return files;
}

std::string header_of(const TensorFile& file) {
  json header{{"__metadata__", {{"format", "pt"}}}};  // transformers requires it
  std::int64_t at = 0;
  for (const StoredTensor* t : file.tensors) {
    header[t->parameter] = {{"dtype", checkpoint::safetensors_dtype(t->dtype)},
                            {"shape", t->shape},
                            {"data_offsets", {at, at + t->bytes()}}};
    at += t->bytes();
  }
  std::string text = header.dump();
  text.resize(static_cast<std::size_t>(aligned(std::ssize(text), 8)), ' ');
  const auto length = static_cast<std::uint64_t>(text.size());
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text;
}

std::string index_of(const std::vector<TensorFile>& files) {
  json map;
  std::int64_t bytes = 0;
  for (const auto& file : files) {
    bytes += file.bytes;
    for (const StoredTensor* t : file.tensors) map[t->parameter] = file.name;
  }
  return json{{"metadata", {{"total_size", bytes}}}, {"weight_map", map}}.dump(2) + "\n";
}

/// On an error, `code` says whether the checkpoint, the output folder or an interruption was at fault.
Status write_file(const TensorFile& tensors, const checkpoint::CheckpointReader& reader, std::byte* buffer,
                  NewFolder& folder, int& code, const GiveUp& give_up) {
  code = runtime::exit_output;
  TROUPE_ASSIGN(const auto file, folder.create(tensors.name));
  const std::string header = header_of(tensors);
  TROUPE_TRY(file->write_at(0, reinterpret_cast<const std::byte*>(header.data()), std::ssize(header)));
  std::int64_t at = std::ssize(header);
  for (const StoredTensor* t : tensors.tensors) {
    code = runtime::exit_interrupted;
    TROUPE_TRY(give_up());
    code = runtime::exit_checkpoint;
    TROUPE_TRY(reader.read_part(*t, Extent::whole(t->shape), buffer));
    code = runtime::exit_output;
    TROUPE_TRY(file->write_at(at, buffer, t->bytes()));
    at += t->bytes();
  }
  return file->sync();
}

/// Exports one checkpoint. On an error, `code` is the exit code for it, and no folder is left.
Expected<Exported> export_point(Storage& storage, const kernels::OpSet& ops, const ExportArguments& a,
                                const lm::Resume& found, const lm::ResumePoint& point, int& code,
                                const GiveUp& give_up) {
  code = runtime::exit_checkpoint;
  const std::string name = "'" + point.folder + "'";
  TROUPE_ASSIGN(const auto config, lm::saved_config(point));
  TROUPE_ASSIGN(const auto reader, checkpoint::CheckpointReader::open(storage, point.folder, point.manifest));
  auto tensors = parameters_in(reader.manifest(), parameters_of(config, ops));
  if (!tensors.ok()) return tensors.status().in(name);

  Exported out{.from = point.folder, .warnings = found.notes()};
  if (config.model.dim % config.model.heads != 0)
    out.warnings.push_back(
        fmt::format("transformers 5 refuses a Llama whose width ({}) is no multiple of its heads ({})",
                    config.model.dim, config.model.heads));
  std::int64_t largest = 0;
  for (const StoredTensor* t : *tensors) {
    largest = std::max(largest, t->bytes());
    out.parameters += elements(t->shape);
    out.bytes += t->bytes();
  }
  TROUPE_ASSIGN(const auto buffer, allocate_host(static_cast<std::size_t>(largest)));
  const auto files = divide(*tensors, a.file_bytes);
  out.files = std::ssize(files);

  code = runtime::exit_output;
  NewFolder folder(storage, a.out);
  TROUPE_TRY(folder.begin());
  TROUPE_TRY(folder.write("config.json", write_llama_config(config.model)));
  for (const auto& file : files) TROUPE_TRY(write_file(file, reader, buffer->data(), folder, code, give_up));
  if (files.size() > 1) TROUPE_TRY(folder.write("model.safetensors.index.json", index_of(files)));
  code = runtime::exit_interrupted;
  TROUPE_TRY(give_up());
  code = runtime::exit_output;
  TROUPE_TRY(folder.commit());
  return out;
}

}  // namespace

Expected<Exported> export_hf(Storage& storage, const kernels::OpSet& ops, const ExportArguments& a, int& code,
                             const GiveUp& give_up) {
  std::optional<Expected<Exported>> out;
  const auto find = [&] { return lm::Resume::find(storage, a.from); };
  const auto use = [&](const lm::Resume& found, const lm::ResumePoint& point, int& of_use) -> Status {
    out.emplace(export_point(storage, ops, a, found, point, of_use, give_up));
    // Damage behind the manifest is told, not passed over; a checkpoint that a run has removed is looked for again.
    if (out->status().code() == Code::damaged && !found.is_outrun()) return {};
    return out->status();
  };
  std::vector<std::string> notes;
  TROUPE_TRY(lm::read_checkpoint(find, use, code, notes));
  return *std::move(out);
}

}  // namespace troupe::ckpt
