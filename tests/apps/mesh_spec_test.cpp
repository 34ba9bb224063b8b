#include "apps/options/mesh_spec.h"

#include <doctest/doctest.h>

#include "tests/apps/contains.h"

using namespace troupe;
using namespace troupe::lm;
using troupe::test::contains;

namespace {

LmConfig config_of(std::int64_t layers, std::int64_t microbatches) {
  LmConfig config;
  config.model.layers = layers;
  config.model.heads = 6;
  config.schedule.batch = microbatches;
  config.schedule.microbatch = 1;
  return config;
}

std::string mesh_error(const std::string& text) { return parse_mesh(text).status().message(); }
std::string check(const std::string& text, const LmConfig& config) {
  return check_mesh(*parse_mesh(text), config).message();
}

}  // namespace

TEST_CASE("a mesh reads and writes: one width for all stages or one each") {
  CHECK(*parse_mesh("dp=2,pp=2") == MeshSpec{{2, 2}, 2, 1});
  CHECK(*parse_mesh("dp=2/1,pp=2") == MeshSpec{{2, 1}, 2, 1});
  CHECK(*parse_mesh("dp=2/1") == MeshSpec{{2, 1}, 2, 1});
  CHECK(*parse_mesh("pp=3, dp = 2") == MeshSpec{{2, 2, 2}, 3, 1});
  CHECK(*parse_mesh("tp=2") == MeshSpec{{1}, 1, 2});
  CHECK(parse_mesh("dp=2/1,pp=2,tp=2")->workers() == 6);
  for (const char* text : {"dp=1", "dp=2", "pp=4", "dp=2,pp=2", "dp=2/1,pp=2", "dp=3,pp=2,tp=4", "tp=2"})
    CHECK(to_string(*parse_mesh(text)) == text);
}

TEST_CASE("a mesh goes into the config and comes back") {
  for (const char* text : {"dp=1", "dp=2,pp=2", "dp=2/1,pp=2", "dp=1/1/2,pp=3,tp=2"}) {
    const auto mesh = parse_mesh(text);
    REQUIRE(mesh.ok());
    CHECK(*mesh_of(mesh_config(*mesh)) == *mesh);
  }
}

TEST_CASE("a mesh that does not parse says what was expected") {
  CHECK(mesh_error("dq=2") == "mesh 'dq=2': unknown axis 'dq'; did you mean 'dp'?");
  CHECK(mesh_error("data=2") == "mesh 'data=2': unknown axis 'data'; expected dp, pp or tp");
  CHECK(contains(mesh_error(""), "expected axis=width"));
  CHECK(contains(mesh_error("2"), "expected axis=width"));
  CHECK(contains(mesh_error("dp=2,"), "expected axis=width"));
  CHECK(contains(mesh_error("dp=0"), "dp=0 must be a whole number of at least 1"));
  CHECK(contains(mesh_error("dp=-2"), "must be a whole number"));
  CHECK(contains(mesh_error("dp=2x"), "must be a whole number"));
  CHECK(contains(mesh_error("dp="), "must be a whole number"));
  CHECK(contains(mesh_error("dp=2/"), "must be a whole number"));
  CHECK(contains(mesh_error("pp=99999999999999999999"), "must be a whole number"));
  CHECK(contains(mesh_error("dp=2,dp=3"), "axis dp is given twice"));
  CHECK(contains(mesh_error("dp=2/1,pp=3"), "dp=2/1 names 2 stages, but pp=3"));
  CHECK(contains(mesh_error("dp=2/1/1,pp=1"), "names 3 stages, but pp=1"));
}

TEST_CASE("a mesh that cannot work names the numbers and the nearest one that does") {
  const auto config = config_of(4, 8);
  CHECK(check("dp=8,pp=6", config) == "");
  CHECK(check("dp=9", config) ==
        "mesh dp=9 cannot work: dp=9 replicas, but a step has only 8 microbatches (batch 8 / microbatch 1); the "
        "nearest mesh that works is dp=8");
  CHECK(check("pp=7", config) ==
        "mesh pp=7 cannot work: pp=7 stages, but the model divides into at most 6 (embedding, 4 layers, head); the "
        "nearest "
        "mesh that works is pp=6");
  CHECK(contains(check("dp=9/2,pp=2", config), "the nearest mesh that works is dp=8/2,pp=2"));
  CHECK(contains(check("dp=100,pp=100", config), "the nearest mesh that works is dp=8,pp=6"));
  CHECK(contains(check("tp=7", config), "the nearest mesh that works is tp=6"));
}

TEST_CASE("the nearest mesh that an error names does work") {
  const auto config = config_of(3, 5);
  for (const char* text : {"dp=6", "pp=9", "dp=7/1/9,pp=3", "dp=9,pp=9,tp=9"}) {
    const auto message = check(text, config);
    const std::string before = "the nearest mesh that works is ";
    REQUIRE(contains(message, before));
    const auto named = parse_mesh(message.substr(message.find(before) + before.size()));
    REQUIRE(named.ok());
    CHECK(check_mesh(*named, config).ok());
  }
}

TEST_CASE("fewer microbatches than stages is a warning, uneven shares are not") {
  const auto config = config_of(6, 3);
  CHECK(check("pp=4", config) == "");
  CHECK(contains(mesh_warning(*parse_mesh("pp=4"), config), "4 stages, but only 3 microbatches"));
  CHECK(contains(mesh_warning(*parse_mesh("dp=2,pp=2"), config), "2 stages, but only 1 microbatches per replica"));
  CHECK(mesh_warning(*parse_mesh("pp=3"), config) == "");
  CHECK(mesh_warning(*parse_mesh("dp=2"), config) == "");
}

TEST_CASE("more places along tp than key-value heads is a warning where they are no multiple of them") {
  auto config = config_of(6, 3);
  config.model.heads = 6;
  config.model.kv_heads = 3;
  CHECK(mesh_warning(*parse_mesh("tp=3"), config) == "");
  CHECK(contains(mesh_warning(*parse_mesh("tp=4"), config), "tp=4 is no multiple of the 3 key-value heads"));
  CHECK(contains(mesh_warning(*parse_mesh("tp=4"), config), "tp=6 would give each its own"));
  CHECK(mesh_warning(*parse_mesh("tp=6"), config) == "");
  CHECK(kv_replicas(*parse_mesh("tp=6"), config) == 2);
  CHECK(kv_replicas(*parse_mesh("tp=4"), config) == 1);
  CHECK(kv_replicas(*parse_mesh("tp=2"), config) == 1);
  CHECK(model_axes(*parse_mesh("dp=2,tp=6"), config) == std::vector<troupe::Axis>{{"tp", 3}, {"tp.q", 2}});
  CHECK(model_axes(*parse_mesh("dp=2,tp=4"), config) == std::vector<troupe::Axis>{{"tp", 4}});
  CHECK(model_axes(*parse_mesh("dp=2"), config) == std::vector<troupe::Axis>{{"tp", 1}});
  config.model.kv_heads = 0;  // as many as heads
  CHECK(mesh_warning(*parse_mesh("tp=6"), config) == "");
}
