// A small Llama with random weights, as one of our checkpoints and as Hugging Face's files: on a simulated disk.
#pragma once

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "apps/ckpt/hf_config.h"
#include "apps/ckpt/hf_export.h"
#include "apps/ckpt/hf_import.h"
#include "devices/sim/sim_storage.h"
#include "runtime/launch/app.h"
#include "tests/checkpoint/sample.h"

namespace troupe::ckpt::hf_model {

using namespace checkpoint::test;

/// Grouped-query attention, no size like another, dim no multiple of heads.
inline lm::LmConfig small_config(bool tied, const std::vector<std::string>& overrides = {}) {
  std::vector<std::string> all{"model.layers=2",         "model.dim=20",
                               "model.heads=6",          "model.kv_heads=2",
                               "model.head_dim=4",       "model.ffn=27",
                               "model.vocab=51",         "model.seq=13",
                               "model.rope_theta=300.5", "model.norm_eps=2e-6",
                               "model.dropout=0.1",      "schedule.steps=9",
                               "schedule.lr=1e-3",       "schedule.batch=6",
                               "schedule.microbatch=2",  tied ? "model.tied=true" : "model.tied=false"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return must(lm::parse_config("", "small", all));
}

inline const runtime::App& app() {
  static const runtime::App the_one;
  return the_one;
}

/// Any bits, infinities and NaN too.
inline std::vector<std::byte> random_bytes(Draw& draw, std::int64_t n) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < bytes.size(); i += 4) {
    const std::uint32_t word = draw.word();
    std::memcpy(bytes.data() + i, &word, std::min<std::size_t>(4, bytes.size() - i));
  }
  return bytes;
}

inline Model random_weights(Draw& draw, const lm::LmConfig& config) {
  Model model;
  for (const auto& p : parameters_of(config, app().ops()))
    for (const auto kind : checkpoint::tensor_kinds)
      model.push_back({p.name, kind, DType::f32, p.shape, random_bytes(draw, elements(p.shape) * 4)});
  return model;
}

/// Writes and commits a checkpoint, divided at random among three places.
inline std::string save(Storage& storage, const std::string& dir, std::int64_t step, const lm::LmConfig& config,
                        const Model& model, Draw& draw) {
  checkpoint::Catalog catalog(storage, dir);
  checkpoint::Manifest head;
  head.stamp = must(catalog.claim(0, 7));
  head.stamp.step = step;
  head.config = to_toml(config);
  const std::string folder = catalog.path(checkpoint::folder_name(step, head.stamp.generation));
  must(storage.make_dir(folder));
  std::vector<checkpoint::ShardRecord> records;
  const auto holdings = random_holdings(draw, model, 3);
  for (std::size_t rank = 0; rank < holdings.size(); ++rank)
    records.push_back(
        must(write_shard(storage, folder, static_cast<std::int32_t>(rank), head.stamp, model, holdings[rank])));
  must(catalog.commit(must(checkpoint::merge(head, records))));
  return folder;
}

using Files = std::map<std::string, std::vector<std::byte>>;

/// All files of a folder; none if it is not there.
inline Files files_in(Storage& storage, const std::string& dir) {
  Files files;
  const auto entries = storage.list(dir);
  if (!entries.ok()) return files;
  for (const auto& e : *entries) files[e.name] = must(read_file(storage, dir + "/" + e.name));
  return files;
}

/// A folder as transformers writes it; tests spoil it.
struct HfFolder {
  struct Tensor {
    std::string dtype;
    Shape shape;
    std::vector<std::byte> bytes;
  };
  nlohmann::json config;
  std::map<std::string, Tensor> tensors;

  /// Of the model of a configuration.
  static HfFolder random(Draw& draw, const lm::LmConfig& c, const std::string& dtype, std::int64_t item) {
    HfFolder out;
    out.config = nlohmann::json::parse(write_llama_config(c.model));
    for (const auto& p : parameters_of(c, app().ops()))
      out.tensors[p.name] = {dtype, p.shape, random_bytes(draw, elements(p.shape) * item)};
    return out;
  }

  /// `files`: how many files of tensors.
  void write(Storage& storage, const std::string& dir, int files = 1) const {
    must(storage.make_dir(dir));
    must(storage.sync_dir(folder_of(dir)));
    write_text(storage, dir + "/config.json", config.dump());
    nlohmann::json map;
    for (int f = 0; f < files; ++f) {
      nlohmann::json header;
      std::string data;
      int i = 0;
      for (const auto& [name, t] : tensors) {
        if (i++ % files != f) continue;
        header[name] = {
            {"dtype", t.dtype}, {"shape", t.shape}, {"data_offsets", {data.size(), data.size() + t.bytes.size()}}};
        data.append(reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size());
        map[name] = file_name(f, files);
      }
      const std::string text = header.dump();
      const auto length = static_cast<std::uint64_t>(text.size());
      write_text(storage, dir + "/" + file_name(f, files),
                 std::string(reinterpret_cast<const char*>(&length), 8) + text + data);
    }
    if (files > 1)
      write_text(storage, dir + "/model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
  }
  static std::string file_name(int f, int files) {
    return files == 1 ? "model.safetensors" : "part-" + std::to_string(f) + ".safetensors";
  }
  static void write_text(Storage& storage, const std::string& path, const std::string& text) {
    const auto* first = reinterpret_cast<const std::byte*>(text.data());
    must(troupe::write_file(storage, path, {first, first + text.size()}));
  }
};

inline Expected<Exported> export_to(Storage& storage, const std::string& from, const std::string& out,
                                    std::int64_t file_bytes = 5'000'000'000) {
  int code = 0;
  return export_hf(storage, app().ops(), {.from = from, .out = out, .file_bytes = file_bytes}, code);
}

inline Expected<Imported> import_to(Storage& storage, const std::string& from, const std::string& out,
                                    const std::string& config = "") {
  int code = 0;
  return import_hf(storage, app().ops(), {.from = from, .out = out, .config = config, .job = 77}, code);
}

}  // namespace troupe::ckpt::hf_model
