// Sampling with cached keys and values: what it must equal is the forward pass that is trained, over the whole text.
#include "devices/base/philox.h"
#include "kernels/cpu/gemm.h"
#include "kernels/initial.h"
#include "tests/model/interpreter.h"
#include "tests/numbers/lm_run.h"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr std::uint64_t seed = 3;  // as plan_of()'s

lm::LmConfig sampling_config(bool tied, std::int64_t tokens) {
  auto c = lm_tiny(tied);
  c.model.init_std = 0.3;  // so that logits differ
  c.sample.tokens = tokens;
  return c;
}

/// The model's graph with the initial parameters of a job, executed op by op.
class Reference {
 public:
  Reference(const runtime::App& app, const lm::LmConfig& c)
      : app_(app), c_(c), g_(lm::build_model(c, app.ops(), corpus(), {0})), run_(g_, app) {
    REQUIRE_MESSAGE(g_.status().ok(), g_.status().message());
    SerialParallel serial;
    for (const Node& n : g_.nodes())
      if (n.kind == Node::Kind::param) {
        const Shape& shape = g_.tensors()[n.out[0]].type.shape;
        const kernels::View all{run_.data<std::byte>(n.out[0]), DType::f32, shape, shape, Extent::whole(shape)};
        if (n.init.kind == Init::Kind::normal)
          kernels::init_normal(all, philox_key(seed, n.name), n.init.value, serial);
        else kernels::init_constant(all, n.init.value, serial);
      }
  }

  /// Logits of every position, by the forward pass of the evaluation over the whole text.
  std::vector<std::vector<float>> whole(std::vector<std::int32_t> text) {
    const auto count = text.size();
    text.resize(static_cast<std::size_t>(c_.model.seq), 0);
    const Node &embedding = node("evaluate", "embedding"), &head = node("evaluate", "lm_head_stats");
    std::copy(text.begin(), text.end(), run_.data<std::int32_t>(embedding.in[0]));
    std::fill_n(run_.data<std::int32_t>(head.in[2]), text.size(), 0);  // targets, which change no logit
    run_.run_ops(1);
    const auto T = c_.model.seq, C = c_.model.dim, V = c_.model.vocab;
    std::vector<float> logits(static_cast<std::size_t>(T * V));
    SerialParallel serial;
    kernels::gemm(false, true, T, V, C, run_.data<float>(head.in[0]), C, run_.data<float>(head.in[1]), C, logits.data(),
                  V, serial);
    std::vector<std::vector<float>> rows;
    for (std::size_t t = 0; t < count; ++t) rows.emplace_back(logits.begin() + t * V, logits.begin() + (t + 1) * V);
    return rows;
  }

  /// Logits of one position, by the sampling program.
  std::vector<float> cached(std::int32_t token, std::int32_t position) {
    for (const Node& n : g_.nodes())
      if (n.op == "lm.text") {
        *run_.data<std::int32_t>(n.out[0]) = token;
        *run_.data<std::int32_t>(n.out[1]) = position;
      }
    run_.run_ops(2);
    const float* row = run_.data<float>(node("sample", "lm.sampler").in[0]);
    return {row, row + c_.model.vocab};
  }

  /// The `number`th token that is drawn, by the sampler.
  std::int32_t draw(std::vector<float> logits, std::int32_t number) {
    auto actor = need(app_.actors().at("lm.sampler")({"sampler", 0, seed, {{"temperature", c_.sample.temperature}}}));
    const Shape shape{1, 1, c_.model.vocab};
    actors::UserCall call;
    call.in = {{reinterpret_cast<std::byte*>(logits.data()), DType::f32, shape, shape, Extent::whole(shape)}};
    call.microbatch = number;
    std::int32_t token = -1, next = -1;
    call.out = {{reinterpret_cast<std::byte*>(&next), DType::i32, {1, 1}, {1, 1}, Extent::whole({1, 1})}};
    call.report = [&](const std::string&, const std::vector<double>& values) {
      token = static_cast<std::int32_t>(values.at(0));
    };
    REQUIRE(actor->act(call).ok());
    CHECK(next == token);
    return token;
  }

 private:
  const Node& node(const std::string& program, const std::string& op) const {
    for (const Node& n : g_.nodes())
      if (n.op == op && n.program >= 0 && g_.programs()[n.program] == program) return n;
    FAIL("no '" << op << "' in " << program);
    return g_.nodes()[0];
  }

  const runtime::App& app_;
  const lm::LmConfig c_;
  const Graph g_;
  Interpreter run_;
};

std::vector<std::int32_t> bytes_of(const std::string& text) {
  std::vector<std::int32_t> out;
  for (unsigned char c : text) out.push_back(c);
  return out;
}

/// A text by a job whose only program is the sampling one.
Expected<std::string> sample(const runtime::App& app, const lm::LmConfig& c, const std::string& prompt, const DpTp& m,
                             std::uint64_t timing) {
  lm::Sampler sampler(prompt);
  CompileOptions o;
  o.stages = stage_meshes(m.dp, lm::model_axes({m.dp, static_cast<std::int64_t>(m.dp.size()), m.tp}, c));
  o.seed = seed;
  TROUPE_ASSIGN(const Plan plan, compile(lm::build_sampler(c, app.ops(), sampler.prompt()), o));
  TROUPE_TRY(verify(plan));
  SessionOptions s;
  s.on_closed = [&](const std::string& program, std::int64_t, const std::vector<Report>& reports) {
    CHECK(program == "sample");
    sampler.finish(reports);
  };
  SimClusterOptions cluster;
  cluster.seed = timing;
  TROUPE_TRY(run_simulated(plan, app.ops(), app.actors(), s, cluster).status());
  return sampler.text();
}

const std::string begin = "the actors ";

}  // namespace

TEST_CASE(
    "with cached keys and values the logits of every token are those of the whole text's forward pass, bit for bit") {
  runtime::App app;
  lm::register_actors(app);
  for (const bool tied : {false, true}) {
    Reference reference(app, sampling_config(tied, 1));
    auto text = bytes_of("The logits of 32 tokens, compared");
    text.resize(32);
    const auto whole = reference.whole(text);
    for (std::int32_t t = 0; t < 32; ++t) {
      CAPTURE(t);
      const auto row = reference.cached(text[t], t);
      REQUIRE(row == whole[t]);
      CHECK(*std::max_element(row.begin(), row.end()) > 0.1f);
    }
  }
}

TEST_CASE(
    "a sample is the text that the whole forward pass, made anew for each token, would give: on any dp, pp and "
    "timing") {
  runtime::App app;
  lm::register_actors(app);
  for (const double temperature : {0.0, 0.8}) {
    auto c = sampling_config(temperature == 0, 32 - static_cast<std::int64_t>(begin.size()));
    c.sample.temperature = temperature;
    Reference reference(app, c);
    auto tokens = bytes_of(begin);
    for (std::int32_t i = 0; i < c.sample.tokens; ++i)
      tokens.push_back(reference.draw(reference.whole(tokens).back(), i));
    const std::string expected(tokens.begin(), tokens.end());
    std::uint64_t timing = 0;
    for (const DpTp& m : {DpTp{{1}, 1}, {{1, 1}, 1}, {{1, 1, 1, 1}, 1}, {{3}, 1}, {{2, 1}, 1}, {{1}, 2}, {{1, 1}, 3}}) {
      CAPTURE(text(m));
      const auto got = sample(app, c, begin, m, timing++);
      REQUIRE_MESSAGE(got.ok(), got.status().message());
      CHECK(*got == expected);
    }
  }
}

TEST_CASE("a text that is longer than the window goes on from the newest model.seq tokens, the same on any mesh") {
  runtime::App app;
  lm::register_actors(app);
  const auto c = sampling_config(true, 50);
  Reference reference(app, c);
  const std::string long_prompt = begin + begin + begin + begin;  // 44 tokens, and the window has 32
  auto tokens = bytes_of(long_prompt);
  for (std::int32_t t = 0; t < static_cast<std::int32_t>(long_prompt.size()) + c.sample.tokens - 1; ++t) {
    const auto logits = reference.cached(tokens[t], t);
    if (const auto number = t - static_cast<std::int32_t>(long_prompt.size()) + 1; number >= 0)
      tokens.push_back(reference.draw(logits, number));
  }
  const std::string expected(tokens.begin(), tokens.end());
  CHECK(expected.size() == 94);
  std::uint64_t timing = 0;
  for (const DpTp& m : {DpTp{{1}, 1}, {{1, 1, 1}, 1}, {{2}, 1}}) {
    CAPTURE(text(m));
    const auto got = sample(app, c, long_prompt, m, timing++);
    REQUIRE_MESSAGE(got.ok(), got.status().message());
    CHECK(*got == expected);
  }
}

TEST_CASE("a trained job samples the same text with ZeRO 1, 2 and 3, and keeps keys and values at one replica only") {
  runtime::App app;
  lm::register_actors(app);
  auto c = lm_tiny(false);
  c.sample.tokens = 40;  // longer than the window
  const auto alone = train(app, c, {1}, 2, 0);
  REQUIRE_MESSAGE(alone.ok(), alone.status().message());
  CHECK(alone->text.size() == prompt.size() + 40);
  for (const std::int32_t zero : {0, 1, 2, 3})
    for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{3}, {2, 2}, {1, 3}}) {
      CAPTURE(zero);
      CAPTURE(text({dp, 1}));
      const auto plan = plan_of(app, c, dp, 1, zero);
      REQUIRE_MESSAGE(plan.ok(), plan.status().message());
      for (Rank r = 0; r < plan->workers(); ++r) {
        const auto local = local_plan(*plan, r);
        REQUIRE(local.ok());
        CHECK((local->memory.op_state > 0) == (local->dp_index == 0));
      }
      const auto other = train(app, c, *plan, 2, 9);
      REQUIRE_MESSAGE(other.ok(), other.status().message());
      CHECK(*other == *alone);
    }
}
