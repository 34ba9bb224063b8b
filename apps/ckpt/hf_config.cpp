#include "apps/ckpt/hf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/lm/model.h"

namespace troupe::ckpt {

using nlohmann::json;

namespace {

/// Reads an object's keys and checks their types. A key that is null counts as left out, as in Python.
class Keys {
 public:
  Keys(const json& object, std::string path) : object_(object), path_(std::move(path)) {}

  bool has(const char* key) const { return object_.contains(key) && !object_[key].is_null(); }
  const json& operator[](const char* key) const { return object_[key]; }

  Status count(const char* key, std::int64_t& value) const {
    if (!has(key)) return wrong(key, "is missing");
    if (!object_[key].is_number_integer() || object_[key] < 1 || object_[key] > (std::int64_t{1} << 40))
      return wrong(key, "is no whole number above 0");
    value = object_[key];
    return {};
  }
  /// Leaves `value` as it is where the key is left out.
  Status number(const char* key, double& value) const {
    if (has(key) && !object_[key].is_number()) return wrong(key, "is no number");
    if (has(key)) value = object_[key];
    return {};
  }
  Status flag(const char* key, bool& value) const {
    if (has(key) && !object_[key].is_boolean()) return wrong(key, "is neither true nor false");
    if (has(key)) value = object_[key];
    return {};
  }
  /// Ok where the key is left out or has the one value that this program computes.
  Status must_be(const char* key, const json& only) const {
    return !has(key) || object_[key] == only ? Status() : wrong(key, "must be " + text(only));
  }
  Status wrong(const char* key, const std::string& what) const {
    return invalid(fmt::format("'{}': '{}' {}{}", path_, key, what, has(key) ? ", but is " + text(object_[key]) : ""));
  }

 private:
  static std::string text(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }
  const json& object_;
  std::string path_;
};

/// Transformers 4 keeps theta beside the other keys, transformers 5 in `rope_parameters`.
Status read_rope(const Keys& config, const std::string& path, double& theta) {
  TROUPE_TRY(config.number("rope_theta", theta));
  TROUPE_TRY(config.must_be("partial_rotary_factor", 1.0));
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!config.has(key)) continue;
    if (!config[key].is_object()) return config.wrong(key, "is no object");
    const Keys rope(config[key], path + "': '" + key);
    TROUPE_TRY(rope.must_be("rope_type", "default"));
    TROUPE_TRY(rope.must_be("type", "default"));
    TROUPE_TRY(rope.must_be("partial_rotary_factor", 1.0));
    TROUPE_TRY(rope.number("rope_theta", theta));
  }
  return {};
}

Status check_architecture(const Keys& config) {
  if (!config.has("model_type")) return config.wrong("model_type", "is missing");
  TROUPE_TRY(config.must_be("model_type", "llama"));
  TROUPE_TRY(config.must_be("architectures", {"LlamaForCausalLM"}));
  TROUPE_TRY(config.must_be("hidden_act", "silu"));
  TROUPE_TRY(config.must_be("attention_bias", false));
  TROUPE_TRY(config.must_be("mlp_bias", false));
  return config.has("quantization_config") ? config.wrong("quantization_config", "must be left out") : Status();
}

}  // namespace

std::string write_llama_config(const lm::ModelConfig& m) {
  const json config{{"architectures", {"LlamaForCausalLM"}},
                    {"attention_bias", false},
                    {"attention_dropout", 0.0},
                    {"bos_token_id", nullptr},
                    {"eos_token_id", nullptr},
                    {"head_dim", m.head_dim},
                    {"hidden_act", "silu"},
                    {"hidden_size", m.dim},
                    {"intermediate_size", m.ffn},
                    {"max_position_embeddings", m.seq},
                    {"mlp_bias", false},
                    {"model_type", "llama"},
                    {"num_attention_heads", m.heads},
                    {"num_hidden_layers", m.layers},
                    {"num_key_value_heads", m.kv_heads},
                    {"rms_norm_eps", m.norm_eps},
                    {"rope_parameters", {{"rope_theta", m.rope_theta}, {"rope_type", "default"}}},
                    {"rope_theta", m.rope_theta},
                    {"tie_word_embeddings", m.tied},
                    {"torch_dtype", "float32"},
                    {"vocab_size", m.vocab}};
  return config.dump(2) + "\n";
}

Expected<lm::ModelConfig> read_llama_config(const std::string& text, const std::string& path) {
  const json object = json::parse(text, nullptr, false);
  if (!object.is_object()) return invalid("'" + path + "' is no JSON object");
  const Keys config(object, path);
  TROUPE_TRY(check_architecture(config));
  lm::ModelConfig m;
  TROUPE_TRY(config.count("vocab_size", m.vocab));
  TROUPE_TRY(config.count("hidden_size", m.dim));
  TROUPE_TRY(config.count("intermediate_size", m.ffn));
  TROUPE_TRY(config.count("num_hidden_layers", m.layers));
  TROUPE_TRY(config.count("num_attention_heads", m.heads));
  TROUPE_TRY(config.count("max_position_embeddings", m.seq));
  m.kv_heads = m.heads;
  if (config.has("num_key_value_heads")) TROUPE_TRY(config.count("num_key_value_heads", m.kv_heads));
  m.head_dim = m.dim / m.heads;
  if (config.has("head_dim")) TROUPE_TRY(config.count("head_dim", m.head_dim));
  m.norm_eps = 1e-6;  // LlamaConfig's
  TROUPE_TRY(config.number("rms_norm_eps", m.norm_eps));
  TROUPE_TRY(config.flag("tie_word_embeddings", m.tied));
  TROUPE_TRY(read_rope(config, path, m.rope_theta));
  return m;
}

std::vector<std::string> overrides_of(const lm::ModelConfig& m) {
  return {fmt::format("model.vocab={}", m.vocab),      fmt::format("model.layers={}", m.layers),
          fmt::format("model.heads={}", m.heads),      fmt::format("model.kv_heads={}", m.kv_heads),
          fmt::format("model.dim={}", m.dim),          fmt::format("model.head_dim={}", m.head_dim),
          fmt::format("model.ffn={}", m.ffn),          fmt::format("model.seq={}", m.seq),
          fmt::format("model.tied={}", m.tied),        fmt::format("model.rope_theta={}", m.rope_theta),
          fmt::format("model.norm_eps={}", m.norm_eps)};
}

std::vector<Parameter> parameters_of(const lm::LmConfig& config, const kernels::OpSet& ops) {
  const runtime::Graph graph = lm::build_model(config, ops, "");
  std::vector<Parameter> all;
  for (const auto& node : graph.nodes())
    if (node.kind == runtime::Node::Kind::param)
      all.push_back({node.name, graph.tensors()[static_cast<std::size_t>(node.out[0])].type.shape});
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return all;
}

}  // namespace troupe::ckpt
