// Which leader an agent follows, and when it takes the place of one that is lost.
#include "runtime/agents/followed_leader.h"

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::runtime;

namespace {

constexpr std::int64_t s = 1'000'000'000;

StoredClaim claim(std::uint32_t generation, bool lives, std::uint32_t without_step = 0) {
  StoredClaim stored{{{7, generation}, 5, "a:1", ""}, 3, lives};
  stored.claim.without_step = without_step;
  return stored;
}

}  // namespace

TEST_CASE("an agent leaves a leader when the store names another one, and not because the store does not answer") {
  FollowedLeader follows(Status(Code::unavailable, "not asked yet"));
  CHECK_FALSE(follows.at().ok());
  follows.connects(std::string("a:1"), 0);
  CHECK(follows.leaves(std::string("a:1")).ok());
  CHECK(follows.leaves(Status(Code::unavailable, "no answer")).ok());
  CHECK(follows.leaves(std::string("b:1")).message() == "its leader is now at b:1");
}

TEST_CASE("a leader that an agent has not heard of is given time, one that it has heard of the time that it says") {
  FollowedLeader follows(Status(Code::unavailable, "not asked yet"));
  CHECK_FALSE(follows.hears(0));
  follows.connects(std::string("a:1"), 10 * s);
  CHECK(follows.hears(10 * s));
  CHECK_FALSE(follows.hears(10 * s + FollowedLeader::silent_ns));
  follows.connects(std::string("a:1"), 20 * s);  // the same one again: it is not heard by that
  CHECK_FALSE(follows.hears(20 * s));
  follows.heard(20 * s, 5 * s);
  CHECK(follows.hears(25 * s - 1));
  CHECK_FALSE(follows.hears(25 * s));
  follows.connects(std::string("b:1"), 30 * s);
  CHECK(follows.hears(30 * s));
}

TEST_CASE("an agent takes the place of a leader whose lease has ended and that it does not hear, three times at most") {
  TakeOver take_over;
  CHECK_FALSE(take_over.is_due({}, false, 0));
  CHECK_FALSE(take_over.is_due(claim(3, true), false, 0));
  CHECK_FALSE(take_over.is_due(claim(3, false), true, 0));
  std::int64_t now = 0;
  for (int n = 0; n < TakeOver::tries_max; ++n) {
    CHECK(take_over.is_due(claim(3, false), false, now));
    CHECK_FALSE(take_over.is_due(claim(3, false), false, now + TakeOver::retry_ns - 1));
    now += TakeOver::retry_ns;
  }
  CHECK_FALSE(take_over.is_due(claim(3, false), false, now));
  CHECK(take_over.is_due(claim(4, false), false, now));  // of another leader
  take_over.give_up();
  CHECK_FALSE(take_over.is_due(claim(4, false), false, now + 10 * TakeOver::retry_ns));
}

TEST_CASE("a run is given up once three leaders in a row were lost without a step, for longer than a renewal takes") {
  TakeOver take_over;
  const StoredClaim lost = claim(3, false, leaders_without_step_max + 1);
  CHECK_FALSE(take_over.is_due(lost, false, 0));
  CHECK_FALSE(take_over.gives_up(lost, false, false, 0));
  CHECK_FALSE(take_over.gives_up(lost, false, false, TakeOver::retry_ns - 1));
  SUBCASE("it stays so") { CHECK(take_over.gives_up(lost, false, false, TakeOver::retry_ns)); }
  SUBCASE("a leader is heard meanwhile, or lives here, or has renewed its lease") {
    bool heard = false, own = false;
    StoredClaim now = lost;
    SUBCASE("heard") { heard = true; }
    SUBCASE("own") { own = true; }
    SUBCASE("renewed") { now.leader_lives = true; }
    CHECK_FALSE(take_over.gives_up(now, heard, own, TakeOver::retry_ns));
    CHECK_FALSE(take_over.gives_up(lost, false, false, TakeOver::retry_ns + 1));
    CHECK(take_over.gives_up(lost, false, false, 2 * TakeOver::retry_ns + 1));
  }
  SUBCASE("one was lost less") {
    CHECK_FALSE(take_over.gives_up(claim(3, false, leaders_without_step_max), false, false, TakeOver::retry_ns));
    CHECK(take_over.is_due(claim(3, false, leaders_without_step_max), false, TakeOver::retry_ns));
  }
}
