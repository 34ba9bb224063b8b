// How a coordinator finds places that hang, are stuck, slow or cut off, and jobs that wait for nothing that comes.
#include "tests/runtime/three_places.h"

using namespace three_places;

TEST_CASE("a place that is killed is waited for: its job is not asked meanwhile what it waits for") {
  const std::int64_t budget = CoordinatorOptions().detect_ns;
  ThreePlaces job;
  job.enter();
  for (const std::int64_t step : {0, 1}) job.commit(step, 10 * ms);
  std::int64_t now = 10 * ms;
  for (; now < 10 * ms + budget; now += budget / 8) {
    for (const Rank r : {0, 2}) job.hear(r, Progress{0, false, {}, 0, {}}, now);
    job.coordinator.turn(now);
  }
  job.coordinator.turn(now);
  for (const Rank r : {0, 2}) job.hear(r, Explained{"waits\n"}, now);
  job.coordinator.turn(now);
  CHECK(job.killed == RankList{1});
  CHECK(job.who<ExplainAll>(2) == RankList{0, 1, 2});  // once, before the kill
  const auto asked = job.who<ExplainAll>(2).size();
  for (const auto end = now + budget / 2; now < end; now += budget / 8) {
    for (const Rank r : {0, 2}) job.hear(r, Progress{0, false, {}, 0, {}}, now);
    job.coordinator.turn(now);
  }
  CHECK(job.who<ExplainAll>(2).size() == asked);
  job.all_hold({1, 2});
  job.down(1, now);
  job.leave({0, 2});
  job.enter();
  job.hear(0, Progress{1, false, {}, 0, {}}, now);
  REQUIRE(job.incidents.size() == 1);
  CHECK(job.incidents[0].culprit == 1);
  CHECK(job.incidents[0].cause.starts_with("worker 1 has said nothing"));
}

TEST_CASE("a place that says nothing for the budget is killed, and its end says so (CR-5 silence)") {
  ThreePlaces job;
  const std::int64_t budget = CoordinatorOptions().detect_ns;
  job.enter(0);
  const auto beat = [&](Rank r, std::int64_t now) { job.hear(r, Progress{0, true, {}, 0}, now); };
  for (const Rank r : {0, 2}) beat(r, budget / 2);
  job.coordinator.turn(budget - 1);
  CHECK(job.killed.empty());
  CHECK(job.coordinator.wakes_ns() == budget);
  SUBCASE("while the coordinator's own process was stopped no place was silent") {
    job.coordinator.resumed_after_stop(10 * budget);
    job.coordinator.turn(11 * budget - 1);
    CHECK(job.killed.empty());
  }
  SUBCASE("it is the silent one") {
    job.coordinator.turn(budget);
    job.coordinator.turn(budget + ms);
    CHECK(job.who<ExplainAll>(2) == RankList{0, 1, 2});
    CHECK(job.killed.empty());
    for (const Rank r : {0, 2}) job.hear(r, Explained{"box.a waits for worker 1\n"}, budget + ms);
    job.coordinator.turn(budget + ms);
    CHECK(job.killed == RankList{1});
    job.all_hold({0});
    job.down(1, budget + 2 * ms);
    job.leave({0, 2});
    job.enter();
    job.hear(0, Progress{1, false, {}, 0}, budget + 3 * ms);
    REQUIRE(job.incidents.size() == 1);
    const std::string& cause = job.incidents[0].cause;
    CHECK(cause.starts_with("worker 1 has said nothing for 2.0 s; worker 1 was killed for it\n"));
    CHECK(cause.find("worker 0:\nbox.a waits for worker 1\nworker 1 does not answer\nworker 2:\n") !=
          std::string::npos);
  }
  SUBCASE("the others do not answer: it is killed after an eighth of the budget") {
    job.coordinator.turn(budget);
    CHECK(job.coordinator.wakes_ns() <= budget + budget / 8);
    job.coordinator.turn(budget + budget / 8 - 1);
    CHECK(job.killed.empty());
    job.coordinator.turn(budget + budget / 8);
    CHECK(job.killed == RankList{1});
  }
  SUBCASE("it speaks while the others are asked: it lives") {
    job.coordinator.turn(budget);
    beat(1, budget + ms);
    job.coordinator.turn(budget + budget / 8);
    CHECK(job.killed.empty());
    CHECK(job.incidents.empty());
  }
  SUBCASE("another place is lost while the others are asked: it is killed at once") {
    job.coordinator.turn(budget);
    job.down(0, budget + ms);
    CHECK(job.killed == RankList{1});
  }
}

TEST_CASE("a place whose act is stuck is killed by the name of the act") {
  ThreePlaces job;
  job.enter();
  job.commit(0);
  job.hear(2, Progress{9, true, "layer1.fwd", 4000});
  CHECK(job.killed.empty());
  for (const Rank r : {0, 1}) job.hear(r, Explained{"waits\n"});
  job.coordinator.turn(0);
  CHECK(job.killed == RankList{2});
  job.all_hold({0, 1});
  job.down(2);
  job.leave({0, 1});
  job.enter();
  job.hear(0, Progress{1, false, {}, 0});
  CHECK(job.incidents.at(0).cause.starts_with(
      "worker 2, actor 'layer1.fwd': its act has not ended for 4.0 s; worker 2 was killed for it\n"));
}

TEST_CASE(
    "of two places that no ping passes between, and that both reach the job, one is killed once nothing goes on: the "
    "one in more such pairs, then the higher number (CR-7 cut links)") {
  const std::int64_t budget = CoordinatorOptions().detect_ns, beat = budget / 8;
  struct Case {
    std::vector<std::vector<Rank>> unheard;  // by place
    RankList killed;
    std::string cause;
  };
  for (const Case& c : {Case{{{1}, {0}, {}}, {1}, "worker 1 and worker 0 do not reach each other"},
                        {{{}, {}, {0}}, {}, ""},  // one end says so: it may have been stopped itself
                        {{{1, 2}, {0}, {0}}, {0}, "worker 0 and worker 1, worker 2 do not reach each other"},
                        {{{}, {}, {}}, {}, ""},
                        {{{0}, {7}, {-1}}, {}, ""}}) {  // none of a peer
    CAPTURE(c.cause);
    ThreePlaces job;
    job.enter();
    job.commit(0, 10 * ms);
    job.commit(1, 20 * ms);
    std::int64_t now = 20 * ms;
    const auto beats = [&](std::int64_t to) {
      for (; now < to; now += beat) {
        for (Rank r = 0; r < 3; ++r)
          job.hear(r, Progress{0, false, {}, 0, c.unheard[static_cast<std::size_t>(r)]}, now);
        job.coordinator.turn(now);
      }
    };
    beats(20 * ms + budget / 2);
    CHECK(job.killed.empty());
    beats(20 * ms + budget / 2 + beat);
    CHECK(job.killed.empty());
    for (Rank r = 0; r < 3; ++r) job.hear(r, Explained{"waits\n"}, now);
    job.coordinator.turn(now);
    CHECK(job.killed == c.killed);
    if (c.killed.empty()) continue;
    const Rank lost = c.killed[0], other = lost == 0 ? 1 : 0, third = 3 - lost - other;
    job.all_hold({1, 2});
    job.down(lost, now);
    job.leave({other, third});
    job.enter();
    job.hear(0, Progress{1, false, {}, 0, {}}, now);
    REQUIRE(job.incidents.size() == 1);
    CHECK(job.incidents[0].culprit == lost);
    CHECK(job.incidents[0].cause.starts_with(
        fmt::format("{}, though both are heard here; worker {} was killed for it\n", c.cause, lost)));
  }
}

TEST_CASE("of two places that do not reach each other the one goes that was lost more often (CR-7 cut links)") {
  const std::int64_t budget = CoordinatorOptions().detect_ns, beat = budget / 8;
  ThreePlaces job;
  job.enter();
  job.commit(0);
  job.all_hold({0, 1});
  job.down(1);
  job.leave({0, 2});
  job.enter();
  std::int64_t now = 10 * ms;
  job.commit(1, now);
  job.commit(2, now);
  for (; now < budget; now += beat)
    for (Rank r = 0; r < 3; ++r) {
      job.hear(r, Progress{0, false, {}, 0, r == 0 ? RankList{} : RankList{3 - r}}, now);
      job.coordinator.turn(now);
    }
  job.coordinator.turn(now);
  CHECK(job.killed == RankList{1});
}

TEST_CASE("a link that is cut while places enter is found as well: they may restore a checkpoint (CR-7 cut links)") {
  const std::int64_t beat = CoordinatorOptions().detect_ns / 8, second = 1000 * ms;
  ThreePlaces job;
  for (Rank r = 0; r < 3; ++r) job.hear(r, WorkerAddress{"a"});
  for (std::int64_t now = 0; now < 61 * second; now += beat) {
    for (Rank r = 0; r < 3; ++r) job.hear(r, Progress{0, false, {}, 0, r < 2 ? RankList{1 - r} : RankList{}}, now);
    job.coordinator.turn(now);
    if (now < 60 * second) REQUIRE(job.killed.empty());
  }
  CHECK(job.killed == RankList{1});
}

TEST_CASE(
    "while one place is silent no other is killed for a link between two that live: the silent one is judged first") {
  const std::int64_t budget = CoordinatorOptions().detect_ns, beat = budget / 8;
  for (const bool silent : {true, false}) {
    CAPTURE(silent);
    ThreePlaces job;
    job.enter();
    job.commit(0, 10 * ms);
    job.commit(1, 20 * ms);
    job.commit(2, 30 * ms);
    for (std::int64_t now = 30 * ms; job.killed.empty() && now < 3 * budget; now += beat) {
      job.hear(0, Progress{1, false, {}, 0, {1, 2}}, now);
      job.hear(1, Progress{1, false, {}, 0, {0, 2}}, now);
      if (!silent) job.hear(2, Progress{1, false, {}, 0, {}}, now);
      job.coordinator.turn(now);
    }
    CHECK(job.killed == (silent ? RankList{2} : RankList{1}));
  }
}

TEST_CASE("a place that all peers and the job miss is silent, not cut off; where work goes on no link is looked at") {
  const std::int64_t budget = CoordinatorOptions().detect_ns, beat = budget / 8;
  ThreePlaces job;
  job.enter();
  job.commit(0, 10 * ms);
  job.commit(1, 20 * ms);
  std::int64_t acts = 1;
  const auto beats = [&](std::int64_t from, std::int64_t to, bool works, bool all) {
    for (std::int64_t now = from; now < to; now += beat) {
      acts += works ? 1 : 0;
      job.hear(0, Progress{acts, false, {}, 0, {2}}, now);
      job.hear(1, Progress{1, false, {}, 0, {2}}, now);
      if (all) job.hear(2, Progress{1, false, {}, 0, {0, 1}}, now);
      job.coordinator.turn(now);
    }
  };
  beats(20 * ms, budget, true, true);
  CHECK(job.killed.empty());
  beats(budget, 2 * budget - beat, false, false);
  CHECK(job.killed.empty());
  job.hear(0, Progress{acts, false, {}, 0, {2}}, 2 * budget - beat);
  job.hear(1, Progress{1, false, {}, 0, {2}}, 2 * budget - beat);
  job.coordinator.turn(2 * budget);
  job.coordinator.turn(2 * budget + beat);
  CHECK(job.killed == RankList{2});
}

TEST_CASE("where more places compute than there are processors, none is named slow") {
  int named = 0;
  for (const std::int64_t at_once : {2, 3}) {
    ThreePlaces job(nullptr, 0, false, at_once);
    job.on_straggler = [&](const Straggler&) { ++named; };
    job.enter();
    for (std::int64_t step = 0; step < 14; ++step)
      for (Rank r = 0; r < 3; ++r) {
        Closed vote = job.vote_of(r, step);
        vote.busy_ns = r == 1 ? 900 * ms : 300 * ms;
        job.hear(r, vote, step * 1000 * ms);
      }
    CHECK(named == (at_once == 3 ? 1 : 0));
  }
}

TEST_CASE("a place that computes far longer than its replicas is named, and goes on") {
  std::vector<Straggler> named;
  ThreePlaces job;
  job.on_straggler = [&](const Straggler& s) { named.push_back(s); };
  job.enter();
  for (std::int64_t step = 0; step < 14; ++step) {
    for (Rank r = 0; r < 3; ++r) {
      Closed vote = job.vote_of(r, step);
      vote.busy_ns = r == 1 ? 900 * ms : 300 * ms;
      job.hear(r, vote, step * 1000 * ms);
    }
    CHECK(job.coordinator.committed() == step + 1);
  }
  REQUIRE(named.size() == 1);
  CHECK(named[0].place == 1);
  CHECK(named[0].times == doctest::Approx(3));
  CHECK(named[0].step == 13);
  CHECK(job.coordinator.state().places[1].slow_times == doctest::Approx(3));
  CHECK(job.coordinator.state().places[0].slow_times == 0);
  CHECK(job.killed.empty());
  // The next generation: it is named no second time, and what takes the place of another is another process.
  job.all_hold({13, 14});
  job.down(2);
  job.leave({0, 1});
  job.enter();
  for (std::int64_t step = 14; step < 40; ++step)
    for (Rank r = 0; r < 3; ++r) {
      Closed vote = job.vote_of(r, step);
      vote.busy_ns = r == 1 ? 900 * ms : 300 * ms;
      if (step < 20) job.hear(r, vote, step * 1000 * ms);
    }
  CHECK(named.size() == 1);
  job.down(1);
  CHECK(job.coordinator.state().places[1].slow_times == 0);
}

TEST_CASE(
    "where nothing runs and nothing comes, the places are asked, and the job goes on; where an act runs it waits for "
    "the stall limit") {
  const std::int64_t budget = CoordinatorOptions().detect_ns;
  for (const bool busy : {false, true}) {
    CAPTURE(busy);
    ThreePlaces job;
    job.enter();
    job.commit(0, 10 * ms);
    job.commit(1, 20 * ms);
    std::int64_t now = 20 * ms;
    for (; now < 20 * ms + budget; now += budget / 8)
      for (Rank r = 0; r < 3; ++r) job.hear(r, Progress{0, busy && r == 1, {}, 0}, now);
    job.coordinator.turn(20 * ms + budget);
    CHECK(job.who<ExplainAll>(2) == (busy ? RankList{} : RankList{0, 1, 2}));
    if (busy) continue;
    for (Rank r = 0; r < 3; ++r) job.hear(r, Explained{"box.a waits for a message\n"}, now);
    job.coordinator.turn(now);
    CHECK_FALSE(job.coordinator.over());
    CHECK(job.who<Abort>(3) == RankList{0, 1, 2});
    job.all_hold({1, 2});
    job.leave({0, 1, 2});
    job.enter();
    job.hear(0, Progress{1, false, {}, 0}, now);
    REQUIRE(job.incidents.size() == 1);
    CHECK(job.incidents[0].culprit == -1);
    CHECK(job.incidents[0].cause.find("box.a waits for a message") != std::string::npos);
  }
}

TEST_CASE("gaps that the job has had before are no stall: eight times the longest may pass") {
  const std::int64_t budget = CoordinatorOptions().detect_ns;
  ThreePlaces job;
  job.enter();
  job.commit(0, 10 * ms);
  job.commit(1, 10 * ms + budget);  // a message that takes long
  const std::int64_t limit = 10 * ms + budget + 8 * budget;
  for (std::int64_t now = 10 * ms + budget; now < limit; now += budget / 8)
    for (Rank r = 0; r < 3; ++r) job.hear(r, Progress{0, false, {}, 0}, now);
  job.coordinator.turn(limit - 1);
  CHECK(job.who<ExplainAll>(2).empty());
  job.coordinator.turn(limit);
  CHECK(job.who<ExplainAll>(2) == RankList{0, 1, 2});
}

TEST_CASE("a place that hangs when the results are known is killed, and the job ends well (CR-5 silence)") {
  ThreePlaces job;
  job.enter();
  for (std::int64_t step = 0; step < 20; ++step) job.commit(step);
  for (Rank r = 0; r < 3; ++r) job.hear(r, Closed{job.p.program("digest"), 20, {}, 0});
  REQUIRE(job.coordinator.session().finished());
  for (const Rank r : {0, 2}) job.hear(r, Stopped{});
  const std::int64_t budget = CoordinatorOptions().detect_ns;
  CHECK(job.coordinator.wakes_ns() == budget);
  job.coordinator.turn(budget - 1);
  CHECK(job.killed.empty());
  job.coordinator.turn(budget);
  CHECK(job.killed == RankList{1});
  job.down(1, budget);
  const JobResult r = job.result();
  CHECK(r.status.ok());
  CHECK(r.committed_steps == 20);
  CHECK(r.incidents.empty());
}

TEST_CASE(
    "a place that outlives SIGKILL is lost with its memory, and the job goes on without it, or says why it ends "
    "(CR-8 end of the killed)") {
  for (const bool replans : {false, true}) {
    CAPTURE(replans);
    ThreePlaces job(nullptr, 0, replans);
    job.do_three_steps();
    job.all_hold({2, 3});
    job.coordinator.distrust(PlaceId{1}, Status(Code::invalid, "garbage"), 0);
    REQUIRE(job.killed == RankList{1});
    const std::int64_t ends = CoordinatorWaits(CoordinatorOptions().detect_ns).killed_ns;
    const auto alive = [&](std::int64_t now_ns) {
      for (const Rank r : {0, 2}) job.hear(r, Progress{now_ns / ms, false, {}, 0, {}}, now_ns);
      job.coordinator.turn(now_ns);
    };
    for (std::int64_t at = 0; at < ends; at += 500 * ms) alive(at);
    CHECK(job.coordinator.generation().number == 2);
    CHECK(job.coordinator.wakes_ns() <= ends);
    alive(ends);
    if (!replans) {
      const JobResult r = job.result();
      CHECK(r.exit_code == exit_worker);
      CHECK(r.status.message().find("has not ended within 30 s of SIGKILL") != std::string::npos);
      CHECK(r.status.message().find("garbage") != std::string::npos);
      REQUIRE(job.incidents.size() == 1);
      CHECK(job.incidents[0].lost == std::vector<std::int32_t>{1});
      continue;
    }
    CHECK(job.coordinator.generation().number == 3);
    job.hear(1, Quiesced{Versions{2, 3}}, ends);  // nothing that it says counts
    job.leave({0, 2});
    REQUIRE(job.coordinator.plan().workers() == 2);
    for (const Rank r : {0, 2}) job.hear(r, WorkerAddress{"a"}, ends);
    CHECK(job.last<Connect>().adopt == 3);
    CHECK(job.last<Connect>().home.areas == std::vector<std::string>{"of 0", "", "of 2"});
    const auto incidents = job.incidents.size();
    job.ends(1, ProcessEnd::Kind::ordinary, "worker 1 was killed at last", ends);
    job.coordinator.turn(ends);
    CHECK(job.coordinator.generation().number == 3);
    CHECK(job.incidents.size() == incidents);
  }
}

TEST_CASE("a place that outlives SIGKILL while another plan is entered takes the state with it that it had (CR-8)") {
  ThreePlaces job(nullptr, 1, true);
  job.do_three_steps();
  job.all_hold({3});
  job.down(0);
  job.leave({1, 2});
  REQUIRE(job.coordinator.plan().workers() == 2);
  const auto alive = [&](std::int64_t now_ns) {
    job.hear(2, Progress{now_ns / ms, false, {}, 0, {}}, now_ns);
    job.coordinator.turn(now_ns);
  };
  std::int64_t now_ns = 0;  // place 1 is silent, is killed, and does not end
  for (; job.coordinator.generation().number == 3 && now_ns < 120'000 * ms; now_ns += 500 * ms) alive(now_ns);
  REQUIRE(job.killed == RankList{1});
  REQUIRE_FALSE(job.coordinator.over());
  job.hear(2, Quiesced{Versions{3}}, now_ns);
  REQUIRE(job.coordinator.places() == std::vector<PlaceId>{PlaceId{2}});
  job.hear(2, WorkerAddress{"a"}, now_ns);
  CHECK(job.last<Connect>().adopt == -1);  // a third of the moments was its own
}

TEST_CASE(
    "the memory of a place that is killed for what it says is not used, though it ends when another plan is entered") {
  ThreePlaces job(nullptr, 1, true);
  job.do_three_steps();
  job.all_hold({3});
  job.coordinator.distrust(PlaceId{1}, Status(Code::invalid, "garbage"), 0);
  CHECK(job.killed == RankList{1});
  job.down(0);
  job.leave({1, 2});
  job.ends(1, ProcessEnd::Kind::ordinary, "worker 1 was killed");
  job.coordinator.turn(0);
  job.leave({2});
  job.hear(2, WorkerAddress{"a"});
  CHECK(job.last<Connect>().adopt == -1);
}

TEST_CASE("a place of a finished job that says garbage is killed, and the job has ended well") {
  ThreePlaces job;
  job.enter();
  for (std::int64_t step = 0; step < 20; ++step) job.commit(step);
  for (Rank r = 0; r < 3; ++r) job.hear(r, Closed{job.p.program("digest"), 20, {}, 0});
  REQUIRE(job.coordinator.session().finished());
  job.coordinator.distrust(PlaceId{1}, Status(Code::invalid, "garbage"), 0);
  CHECK(job.killed == RankList{1});
  for (const Rank r : {0, 2}) job.hear(r, Stopped{});
  job.coordinator.turn(0);
  const JobResult r = job.result();
  CHECK(r.exit_code == exit_ok);
  CHECK(r.committed_steps == 20);
}

TEST_CASE("a spare that says garbage is killed, and ends no job") {
  ThreePlaces job(nullptr, 0, true);
  job.coordinator.add_place(PlaceId{3}, 0);
  job.enter();
  job.commit(0);
  job.coordinator.distrust(PlaceId{3}, Status(Code::invalid, "garbage"), 0);
  CHECK_FALSE(job.coordinator.over());
  CHECK(job.killed == RankList{3});
  CHECK(job.coordinator.available().size() == 3);
  job.ends(3, ProcessEnd::Kind::ordinary, "worker 3 was killed");
  job.commit(1);
  CHECK_FALSE(job.coordinator.over());
}

TEST_CASE("a spare that takes a place and says nothing is killed after two budgets, not after the time of a start") {
  const std::int64_t start_ns = CoordinatorWaits(CoordinatorOptions().detect_ns).start_ns;
  const std::int64_t budget_ns = CoordinatorOptions().detect_ns;
  for (const bool fresh : {false, true}) {
    CAPTURE(fresh);
    ThreePlaces job(nullptr, 0, true);
    job.enter();
    job.commit(0);
    job.all_hold({1});
    const std::int64_t lost_ns = 2 * start_ns;
    job.coordinator.add_place(PlaceId{3}, fresh ? lost_ns : 0);
    for (Rank r = 0; r < 3; ++r) job.hear(r, Progress{1, false, {}, 0, {}}, lost_ns);
    job.down(1, lost_ns);
    for (const Rank r : {0, 2}) job.hear(r, Quiesced{Versions{1}}, lost_ns);
    REQUIRE(job.coordinator.places().size() == 3);
    REQUIRE(job.coordinator.rank_of(PlaceId{3}) >= 0);
    std::int64_t now_ns = lost_ns;
    while (job.killed.empty() && now_ns < lost_ns + 3 * start_ns) {
      now_ns += 100 * ms;
      for (const Rank r : {0, 2}) job.hear(r, Progress{1, false, {}, 0, {}}, now_ns);
      job.coordinator.turn(now_ns);
    }
    CHECK(job.killed == RankList{3});
    const std::int64_t after_ns = now_ns - lost_ns;
    if (fresh) CHECK(after_ns >= start_ns);
    else CHECK(after_ns >= 2 * budget_ns);
    if (!fresh) CHECK(after_ns <= 3 * budget_ns);
  }
}

TEST_CASE("a spare that has died is no place any more") {
  for (const bool suspect : {false, true}) {
    ThreePlaces job(nullptr, 0, true);
    job.coordinator.add_place(PlaceId{3}, 0);
    job.enter();
    job.commit(0);
    REQUIRE(job.coordinator.available().size() == 4);
    job.ends(3, suspect ? ProcessEnd::Kind::suspect : ProcessEnd::Kind::ordinary, "worker 3 was killed");
    CHECK(job.coordinator.available().size() == 3);
    job.all_hold({1});
    job.down(1);
    job.leave({0, 2});
    CHECK(job.shapes.at(0).size() == 2);
  }
}

TEST_CASE("a place that has stopped is not silent") {
  ThreePlaces job;
  job.enter();
  for (std::int64_t step = 0; step < 20; ++step) job.commit(step);
  for (Rank r = 0; r < 3; ++r) job.hear(r, Closed{job.p.program("digest"), 20, {}, 0});
  REQUIRE(job.coordinator.session().finished());
  for (const Rank r : {0, 1}) job.hear(r, Stopped{});
  const std::int64_t budget = CoordinatorOptions().detect_ns;
  for (std::int64_t now = 0; now < budget; now += budget / 8) job.hear(2, Progress{0, true, {}, 0}, now);
  CHECK(job.coordinator.wakes_ns() > budget);
}

TEST_CASE("a place that was stuck before another plan is entered is not killed in it") {
  ThreePlaces job(nullptr, 0, true);
  job.enter();
  job.commit(0);
  job.all_hold({1});
  job.down(1);
  job.hear(2, Progress{1, true, "in.x", 5000, {}});
  job.leave({0, 2});
  REQUIRE(job.shapes.size() == 1);
  job.coordinator.turn(CoordinatorOptions().detect_ns / 8);
  CHECK(job.killed.empty());
}

TEST_CASE("a place that stops after it was killed, and does not end, keeps no coordinator awake") {
  ThreePlaces job;
  job.enter();
  for (std::int64_t step = 0; step < 20; ++step) job.commit(step);
  for (Rank r = 0; r < 3; ++r) job.hear(r, Closed{job.p.program("digest"), 20, {}, 0});
  const std::int64_t budget = CoordinatorOptions().detect_ns;
  for (const Rank r : {0, 2}) job.hear(r, Progress{0, true, {}, 0}, budget - 1);
  job.coordinator.turn(budget);
  job.coordinator.turn(budget + budget / 8);
  REQUIRE(job.killed == RankList{1});
  job.hear(1, Stopped{}, 2 * budget);
  const std::int64_t ends = budget + budget / 8 + CoordinatorWaits(budget).killed_ns;
  for (std::int64_t now = 2 * budget; now < ends; now += budget / 4)
    for (const Rank r : {0, 2}) job.hear(r, Progress{0, true, {}, 0}, now);
  job.coordinator.turn(ends);
  CHECK(job.coordinator.wakes_ns() > ends);
}

TEST_CASE("a place that is gone is not silent") {
  ThreePlaces job(nullptr, 0, true);
  job.enter();
  job.commit(0);
  job.all_hold({1});
  job.down(1);
  job.leave({0});
  const std::int64_t budget = CoordinatorOptions().detect_ns;
  for (std::int64_t now = 0; now <= 2 * budget; now += budget / 8) job.coordinator.turn(now);
  CHECK(std::count(job.killed.begin(), job.killed.end(), 1) == 0);
  CHECK_FALSE(job.killed.empty());
}

TEST_CASE("a place that was killed and has ended is not lost for it later") {
  ThreePlaces job;
  job.do_three_steps();
  job.all_hold({3});
  job.coordinator.distrust(PlaceId{1}, Status(Code::invalid, "garbage"), 0);
  job.down(1);
  job.leave({0, 2});
  job.enter();
  const std::int64_t ends = CoordinatorWaits(CoordinatorOptions().detect_ns).killed_ns;
  for (std::int64_t now = 0; now <= ends + 500 * ms; now += 500 * ms) {
    for (Rank r = 0; r < 3; ++r) job.hear(r, Progress{now / ms + 1, false, {}, 0, {}}, now);
    job.coordinator.turn(now);
  }
  CHECK_FALSE(job.coordinator.over());
  CHECK(job.coordinator.generation().number == 3);
}

TEST_CASE("the answer of a place that is gone is not waited for") {
  ThreePlaces job(nullptr, 0, true);
  job.enter();
  job.commit(0);
  job.all_hold({1});
  job.down(1);
  job.hear(2, Progress{1, true, "in.x", 5000, {}});
  job.hear(0, Explained{"waits\n"});
  job.coordinator.turn(0);
  CHECK(job.killed == RankList{2});
}
