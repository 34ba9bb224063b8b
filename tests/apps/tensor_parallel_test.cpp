// Tensor parallelism of the language model: no hint is given, the layouts are found. NU-3: changing tp changes the
// order of some sums, so numbers agree within a tolerance; dp and pp under a given tp change no bit (NU-2).
#include "apps/lm/config.h"
#include "tests/apps/lm_run.h"

using namespace troupe;
using namespace troupe::test;

namespace {

lm::LmConfig lm_tiny(bool tied) {
  auto c = lm::load_config(TROUPE_SOURCE_DIR "/apps/configs/lm-tiny.toml", {tied ? "model.tied=true" : "model.tied=false"});
  REQUIRE_MESSAGE(c.ok(), c.status().message());
  return *c;
}

double worst(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double far = 0;
  for (std::size_t i = 0; i < a.size(); ++i) far = std::max(far, std::abs(a[i] - b[i]) / std::abs(b[i]));
  return far;
}

struct Mesh_ {
  std::vector<std::int64_t> dp;
  std::int64_t tp;
};

std::string text(const Mesh_& m) {
  std::string s = "tp " + std::to_string(m.tp) + ", dp per stage";
  for (auto d : m.dp) s += " " + std::to_string(d);
  return s;
}

}  // namespace

TEST_CASE("NU-3: 100 steps of lm-tiny on any tp agree with one worker to 1e-5 of the loss; NU-2: dp and pp under it agree bitwise") {
  runtime::App app;
  lm::register_actors(app);
  const auto c = lm_tiny(false);
  REQUIRE(c.schedule.lr <= 1e-3);
  const auto alone = train(app, c, {1}, 100, 0);
  REQUIRE_MESSAGE(alone.ok(), alone.status().message());
  std::map<std::int64_t, Outcome> first;   // by tp
  for (const Mesh_& m : {Mesh_{{1}, 2}, {{1}, 3}, {{1}, 4}, {{2}, 2}, {{1, 1}, 2}, {{2, 2}, 2}}) {
    CAPTURE(text(m));
    const auto other = train(app, c, m.dp, 100, 1, m.tp);
    REQUIRE_MESSAGE(other.ok(), other.status().message());
    CHECK(worst(other->losses, alone->losses) <= 1e-5);
    CHECK(worst(other->eval, alone->eval) <= 1e-5);
    MESSAGE(text(m) << ": loss within " << worst(other->losses, alone->losses) << ", norm within " << worst(other->norms, alone->norms));
    const auto [it, fresh] = first.try_emplace(m.tp, *other);
    CHECK(it->second == *other);
  }
}

TEST_CASE("NU-3: the same with tied embeddings, 20 steps; uneven stages, and message timing that changes no bit") {
  runtime::App app;
  lm::register_actors(app);
  const auto c = lm_tiny(true);
  const auto alone = train(app, c, {1}, 20, 0);
  REQUIRE_MESSAGE(alone.ok(), alone.status().message());
  std::map<std::int64_t, Outcome> first;
  for (const Mesh_& m : {Mesh_{{1}, 2}, {{3}, 2}, {{2, 1}, 2}, {{1, 2, 1}, 2}, {{1}, 5}, {{1, 1}, 5}})
    for (std::uint64_t seed : {2, 3}) {
      CAPTURE(text(m));
      CAPTURE(seed);
      const auto other = train(app, c, m.dp, 20, seed, m.tp);
      REQUIRE_MESSAGE(other.ok(), other.status().message());
      CHECK(worst(other->losses, alone->losses) <= 1e-5);
      const auto [it, fresh] = first.try_emplace(m.tp, *other);
      CHECK(it->second == *other);
    }
}
