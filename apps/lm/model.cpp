#include "apps/lm/model.h"

#include <fmt/format.h>

#include <cmath>

#include "kernels/ops.h"

namespace troupe::lm {

namespace {

using kernels::Attrs;
using kernels::Value;
using runtime::Graph;
using runtime::Init;

/// Writes one program's forward pass. B = samples of a microbatch, T = seq, C = dim; of a sample both are 1.
class ModelBuilder {
 public:
  ModelBuilder(Graph& g, const LmConfig& c, bool train) : g_(g), c_(c), train_(train) {}
  /// Token by token: attention keeps the keys and values of the tokens before (op state). `position`: of the token.
  ModelBuilder(Graph& g, const LmConfig& c, Value position) : g_(g), c_(c), train_(false), position_(position) {}

  Value embed(Value tokens) {  // (B, T) -> (B, T, C)
    vocabulary_unit("vocabulary.in");
    const Value x = g_.op("embedding", {tokens, embedding()}, vocabulary())[0];
    g_.unit("embed");
    return dropout(x, "embed");
  }

  Value block(Value x, std::int64_t layer) {  // (B, T, C)
    const ModelConfig& m = c_.model;
    const std::string unit = fmt::format("layers.{}", layer);
    g_.unit(unit, "layers.*");
    prefix_ = "model." + unit + ".";
    const std::int64_t group = m.heads / m.kv_heads * m.head_dim;  // query columns that share a key-value head
    const Value n = norm(x, prefix_ + "input_layernorm.weight");
    // (B, T, heads * D)
    Value q = linear(n, "self_attn.q_proj", m.heads * m.head_dim, m.dim, {{"unit", group}, {"subunit", m.head_dim}});
    // (B, T, kv_heads * D)
    Value k = linear(n, "self_attn.k_proj", m.kv_heads * m.head_dim, m.dim, {{"unit", m.head_dim}});
    const Value v = linear(n, "self_attn.v_proj", m.kv_heads * m.head_dim, m.dim, {{"unit", m.head_dim}});
    const Value o = attention(rotated(q, group), rotated(k, m.head_dim), v);
    const Value a = linear(o, "self_attn.o_proj", m.dim, m.heads * m.head_dim,
                           {{"in_unit", group}, {"in_subunit", m.head_dim}}, true);
    x = g_.op("add", {x, dropout(a, unit + ".attn")})[0];
    const Value n2 = norm(x, prefix_ + "post_attention_layernorm.weight");
    const Value gate = linear(n2, "mlp.gate_proj", m.ffn, m.dim);
    const Value up = linear(n2, "mlp.up_proj", m.ffn, m.dim);
    const Value h = g_.op("swiglu", {gate, up})[0];
    const Value d = linear(h, "mlp.down_proj", m.dim, m.ffn, {}, true);
    return g_.op("add", {x, dropout(d, unit + ".mlp")})[0];
  }

  /// Begins the unit of ops that read the vocabulary: one that all stages share, or the current unit.
  void vocabulary_unit(const std::string& name) {
    if (c_.mesh.shared_vocabulary) g_.shared_unit(name);
  }

  /// Tokens that stay together where the vocabulary is divided: the same for all readers of a tied table.
  Attrs vocabulary() const { return {{"unit", kernels::vocabulary_unit(c_.model.vocab)}}; }

  Value head_norm(Value x) {
    g_.unit("head");
    return norm(x, "model.norm.weight");
  }
  Value head_weight() {
    return c_.model.tied ? embedding()
                         : g_.param("lm_head.weight", {c_.model.vocab, c_.model.dim}, Init::normal(std_of(false)));
  }

 private:
  float std_of(bool residual) const {
    // GPT-2: weights whose output is added to the residual stream start smaller, so that its variance does not grow
    // with the number of layers.
    return static_cast<float>(c_.model.init_std /
                              (residual ? std::sqrt(2.0 * static_cast<double>(c_.model.layers)) : 1.0));
  }
  Value embedding() {
    return g_.param("model.embed_tokens.weight", {c_.model.vocab, c_.model.dim}, Init::normal(std_of(false)));
  }
  /// `units`: columns of the output ("unit") or input ("in_unit") that stay together where they are divided.
  Value linear(Value x, const std::string& name, std::int64_t out, std::int64_t in, const Attrs& units = {},
               bool residual = false) {
    return g_.op("linear", {x, g_.param(prefix_ + name + ".weight", {out, in}, Init::normal(std_of(residual)))},
                 units)[0];
  }
  Value norm(Value x, const std::string& name) {
    return g_.op("rmsnorm", {x, g_.param(name, {c_.model.dim}, Init::constant(1), false)},
                 {{"eps", c_.model.norm_eps}})[0];
  }
  /// `unit`: columns that stay together.
  Value rotated(Value x, std::int64_t unit) {
    const Attrs attrs{
        {"head_dim", c_.model.head_dim}, {"theta", c_.model.rope_theta}, {"inverse", std::int64_t{0}}, {"unit", unit}};
    return position_ == kernels::no_value ? g_.op("rope", {x}, attrs)[0] : g_.op("rope_at", {x, position_}, attrs)[0];
  }
  Value attention(Value q, Value k, Value v) {
    const std::int64_t D = c_.model.head_dim;
    if (position_ == kernels::no_value) return g_.op("attention", {q, k, v}, {{"head_dim", D}})[0];
    return g_.op("attention_cached", {q, k, v, position_}, {{"head_dim", D}, {"window", c_.model.seq}})[0];
  }
  Value dropout(Value x, const std::string& name) {
    if (!train_ || c_.model.dropout == 0) return x;
    return g_.op("dropout", {x}, {{"p", c_.model.dropout}, {"rng", name + ".dropout"}})[0];
  }

  Graph& g_;
  const LmConfig& c_;
  bool train_;
  Value position_ = kernels::no_value;  ///< of the one token
  std::string prefix_;
};

/// The attributes of the loaders of a split: "train", "eval" (held out) or "text" (all of it, see build_evaluator). Of
/// what is held out each step of a run reads the first samples, so that its batch is 0.
Attrs samples_of(const LmConfig& c, const std::string& text, const std::string& split) {
  return {{"path", text},
          {"split", split},
          {"seq", c.model.seq},
          {"vocab", c.model.vocab},
          {"batch", split == "eval" ? 0 : c.schedule.batch},
          {"eval_fraction", c.eval.fraction},
          {"seed", c.run.seed}};
}

Value loader(Graph& g, const LmConfig& c, Attrs samples, const std::string& what) {
  const kernels::TensorType type{DType::i32, {c.schedule.microbatch, c.model.seq}};
  samples.set("what", what);
  return g.actor("lm.data", samples.text("split") + "." + what, {}, {{what, type, std::nullopt}}, samples)[0];
}

Value loss(Graph& g, const LmConfig& c, const Attrs& samples) {
  ModelBuilder b(g, c, samples.text("split") == "train");
  g.unit("embed");
  Value x = b.embed(loader(g, c, samples, "inputs"));
  for (std::int64_t l = 0; l < c.model.layers; ++l) x = b.block(x, l);
  x = b.head_norm(x);
  const Value targets = loader(g, c, samples, "targets");
  b.vocabulary_unit("vocabulary.out");
  const Value w = b.head_weight(), stats = g.op("lm_head_stats", {x, w, targets})[0];
  return g.op("lm_head_loss", {stats, x, w, targets}, {{"scale", 1.0 / static_cast<double>(tokens_per_step(c))}})[0];
}

void add_evaluation(Graph& g, const LmConfig& c, const Attrs& samples) {
  g.program("evaluate", {c.eval.batches, c.schedule.microbatch});
  g.report("eval_loss", loss(g, c, samples));
}

void add_sample(Graph& g, const LmConfig& c, const std::vector<std::int64_t>& prompt) {
  // The last token is drawn and not read.
  const auto prompt_tokens = std::ssize(prompt);
  g.program("sample", {.microbatches = prompt_tokens + c.sample.tokens - 1, .samples = 1, .stateful = true});
  g.unit("embed");
  const kernels::TensorType token{DType::i32, {1, 1}};
  const Value drawn = g.delay("drawn", token);
  const auto text = g.actor("lm.text", "text", {drawn}, {{"token", token, {}}, {"position", {DType::i32, {1}}, {}}},
                            {{"prompt", prompt}});
  ModelBuilder b(g, c, text[1]);
  Value x = b.embed(text[0]);
  for (std::int64_t l = 0; l < c.model.layers; ++l) x = b.block(x, l);
  x = b.head_norm(x);
  b.vocabulary_unit("vocabulary.out");
  const Value logits = g.op("linear", {x, b.head_weight()}, b.vocabulary())[0];  // (1, 1, vocab)
  g.unit("head");
  g.feed_back(drawn, g.actor("lm.sampler", "sampler", {logits}, {{"token", token, {}}},
                             {{"temperature", c.sample.temperature}, {"first", prompt_tokens - 1}})[0]);
}

}  // namespace

runtime::Graph build_model(const LmConfig& c, const kernels::OpSet& ops, const std::string& text,
                           const std::vector<std::int64_t>& prompt) {
  Graph g(ops);
  g.program("train", {c.schedule.microbatches(), c.schedule.microbatch});
  const Value train_loss = loss(g, c, samples_of(c, text, "train"));
  kernels::AdamW hyper;
  hyper.lr = static_cast<float>(c.schedule.lr);
  hyper.beta1 = static_cast<float>(c.optimizer.beta1);
  hyper.beta2 = static_cast<float>(c.optimizer.beta2);
  hyper.eps = static_cast<float>(c.optimizer.eps);
  hyper.weight_decay = static_cast<float>(c.optimizer.weight_decay);
  g.minimize(train_loss, hyper);
  if (c.eval.every > 0) add_evaluation(g, c, samples_of(c, text, "eval"));
  if (!prompt.empty()) add_sample(g, c, prompt);
  return g;
}

runtime::Graph build_evaluator(const LmConfig& c, const kernels::OpSet& ops, const std::string& text,
                               EvaluatedPart part, std::int64_t first_step) {
  Graph g(ops);
  Attrs samples = samples_of(c, text, part == EvaluatedPart::held_out ? "eval" : "text");
  samples.set("batch", c.eval.batches * c.schedule.microbatch);
  samples.set("first_step", first_step);
  add_evaluation(g, c, samples);
  return g;
}

runtime::Graph build_sampler(const LmConfig& c, const kernels::OpSet& ops, const std::vector<std::int64_t>& prompt) {
  Graph g(ops);
  add_sample(g, c, prompt);
  return g;
}

}  // namespace troupe::lm
