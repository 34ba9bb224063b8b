// Exchanges whose peers are late, silent or dead.
#include "placement/boxing.h"
#include "tests/comm/exchange_ends.h"

using namespace troupe;
using namespace troupe::comm;
using namespace troupe::comm::test;

TEST_CASE("a receive that is not posted holds its sender back; a dead peer ends the act with its error, once") {
  const Layout from({4}, DType::f32, line(1), {Sbp::B()}), to({4}, DType::f32, line(1, 1), {Sbp::B()});
  const auto plan = plan_boxing(from, to);
  const Tensor<float> tensor(from.shape, 1, 1);
  std::vector<End> ends(2);
  tensor.give(ends[0], Extent::whole(from.shape), {0, 1});
  ends[1].wants = true;
  ends[1].want = Extent::whole(from.shape);
  plan_ends(ends, *plan, DType::f32);
  Cluster c(2, 0);
  ExchangeAct act;
  act.sources = {ends[0].source.data()};
  run_exchange(ends[0].route, act, *c.ends[0], *c.streams[0], [&](Status s, const Header&) {
    ends[0].status = std::move(s);
    ++ends[0].done;
  });
  c.run();
  CHECK(ends[0].done == 0);  // rendezvous: the slot stays the sender's until there is a place for it
  c.net.kill(1);
  c.run();
  CHECK(ends[0].done == 1);
  CHECK(ends[0].status.code() == Code::unavailable);
}

TEST_CASE("an act that lost one peer says so at once, although another peer is silent and not dead") {
  // Rank 2 gathers from 0 and 1: 0 never sends, 1 is killed.
  const Layout from({4}, DType::f32, line(2), {Sbp::S(0)}), to({4}, DType::f32, line(1, 2), {Sbp::B()});
  const auto plan = plan_boxing(from, to);
  REQUIRE(plan.ok());
  const Tensor<float> tensor(from.shape, 1, 1);
  std::vector<End> ends(3);
  for (std::int64_t r = 0; r < 2; ++r) tensor.give(ends[static_cast<std::size_t>(r)], from.extent_at(r), {0, 1});
  ends[2].wants = true;
  ends[2].want = Extent::whole(from.shape);
  plan_ends(ends, *plan, DType::f32);
  Cluster c(3, 0);
  auto begin = [&](std::size_t r) {
    ExchangeAct act;
    if (!ends[r].have.empty()) act.sources = {ends[r].source.data()};
    act.destination = ends[r].destination.data();
    act.staging = ends[r].staging.data();
    run_exchange(ends[r].route, act, *c.ends[r], *c.streams[r], [&ends, r](Status s, const Header&) {
      ends[r].status = std::move(s);
      ++ends[r].done;
    });
  };
  begin(2);
  c.run();
  CHECK(ends[2].done == 0);
  c.net.kill(1);
  c.run();
  CHECK(ends[2].done == 1);
  CHECK(ends[2].status.code() == Code::unavailable);
  begin(0);  // it comes after all: its part still finds its place, and no caller is told twice
  c.run();
  CHECK(ends[0].done == 1);
  CHECK(ends[0].status.ok());
  CHECK(ends[2].done == 1);
  CHECK(std::memcmp(ends[2].destination.data() + kLead, tensor.terms[0].data(), 8) == 0);
}
