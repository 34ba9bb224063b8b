// NU-1 (runs) and NU-2 (topologies) for the language model, whole jobs in one thread. Real processes do the same in
// tests/command.
#include "tests/numbers/lm_run.h"

using namespace troupe;
using namespace troupe::test;

namespace {

constexpr std::int64_t lm_steps = unless_instrumented(20, 6);

lm::LmConfig deep_config(bool tied, int layers) {
  const std::string text = "[model]\nlayers = " + std::to_string(layers) +
                           "\nheads = 4\nkv_heads = 2\ndim = 24\nhead_dim = 6\nffn = 40\nseq = 16\n"
                           "dropout = 0.1\ntied = " +
                           (tied ? "true" : "false") +
                           "\n[schedule]\nsteps = 40\nwarmup = 5\nlr = 3e-3\nbatch = 8\nmicrobatch = 1\n"
                           "[optimizer]\nclip = 0.05\n[eval]\nevery = 5\nbatches = 3\n[sample]\ntokens = 12\n";
  auto c = lm::parse_config(text, "test");
  REQUIRE_MESSAGE(c.ok(), c.status().message());
  return *c;
}

}  // namespace

TEST_CASE(
    "NU-1, NU-2: 20 steps of the language model give the same bits on any dp, pp and timing, with dropout, "
    "clipping, tying, evaluation") {
  runtime::App app;
  lm::register_actors(app);
  std::uint64_t seed = 0;  // of the order of actors and the delays of messages; 0: first come, no jitter
  for (const bool tied : {false, true}) {
    const auto c = deep_config(tied, 7);
    const auto alone = train(app, c, {1}, lm_steps, 0);
    REQUIRE_MESSAGE(alone.ok(), alone.status().message());
    REQUIRE(alone->losses.size() == lm_steps);
    CHECK(alone->losses.back() < alone->losses.front());
    for (double n : alone->norms) CHECK(n > c.optimizer.clip);  // clipping acts in every step
    CHECK(alone->eval.size() == lm_steps / 5);
    CHECK(alone->text.size() == 4 + 12);
    for (const std::vector<std::int64_t>& dp :
         {std::vector<std::int64_t>{2}, {3}, {4}, {1, 1}, {1, 1, 1}, {1, 1, 1, 1}, {2, 2}, {2, 1}}) {
      std::string what = tied ? "tied, dp per stage" : "untied, dp per stage";
      for (auto d : dp) what += " " + std::to_string(d);
      CAPTURE(what);
      const auto other = train(app, c, dp, lm_steps, ++seed);
      REQUIRE_MESSAGE(other.ok(), other.status().message());
      CHECK(*other == *alone);
    }
  }
}

TEST_CASE("NU-2: every pipeline schedule gives the bits of one worker, with evaluation and a sample beside it") {
  runtime::App app;
  lm::register_actors(app);
  std::uint64_t seed = 100;
  for (const bool tied : {false, true}) {
    const auto c = deep_config(tied, 7);
    const auto alone = train(app, c, {1}, lm_steps, 0);
    REQUIRE_MESSAGE(alone.ok(), alone.status().message());
    for (const char* name : {"interleaved:2", "zero-bubble"})
      for (const std::vector<std::int64_t>& dp :
           {std::vector<std::int64_t>{1, 1}, {1, 1, 1}, {1, 1, 1, 1}, {2, 2}, {3, 3}, {2, 1}}) {
        std::string what = std::string(tied ? "tied, " : "untied, ") + name + ", dp per stage";
        for (auto d : dp) what += " " + std::to_string(d);
        CAPTURE(what);
        const auto other = train(app, c, dp, lm_steps, ++seed, 1, 0, *parse_pipeline(name));
        REQUIRE_MESSAGE(other.ok(), other.status().message());
        CHECK(*other == *alone);
      }
  }
}

TEST_CASE("NU-1: message timing and the order of actors change no bit of the language model") {
  runtime::App app;
  lm::register_actors(app);
  const auto c = deep_config(true, 3);
  const auto first = train(app, c, {1}, 8, 0);
  REQUIRE_MESSAGE(first.ok(), first.status().message());
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    CAPTURE(seed);
    const auto other = train(app, c, seed % 2 ? std::vector<std::int64_t>{2, 2} : std::vector<std::int64_t>{3, 1}, 8,
                             seed);
    REQUIRE_MESSAGE(other.ok(), other.status().message());
    CHECK(*other == *first);
  }
}

TEST_CASE("NU-1: microbatches ahead and weight gradients apart change no bit of the language model under tp") {
  runtime::App app;
  lm::register_actors(app);
  const auto c = deep_config(true, 3);
  std::uint64_t seed = 200;  // of the order of actors and the delays of messages
  for (const std::vector<std::int64_t>& dp : {std::vector<std::int64_t>{1}, {1, 1}}) {
    const auto first = train(app, c, dp, 8, 0, 2);
    REQUIRE_MESSAGE(first.ok(), first.status().message());
    for (const Pipeline p :
         {Pipeline{Pipeline::Kind::one_f_one_b, 1, 2}, Pipeline{Pipeline::Kind::one_f_one_b, 1, 0, true},
          Pipeline{Pipeline::Kind::one_f_one_b, 1, 3, true}}) {
      CAPTURE(p.ahead);
      CAPTURE(p.weights_apart);
      CAPTURE(dp.size());
      const auto other = train(app, c, dp, 8, ++seed, 2, 0, p);
      REQUIRE_MESSAGE(other.ok(), other.status().message());
      CHECK(*other == *first);
    }
  }
}
