// Which thread runs actors: the scheduler's own, and threads that lend themselves.
#include <doctest/doctest.h>

#include <atomic>
#include <caf/actor_system.hpp>
#include <caf/actor_system_config.hpp>
#include <caf/send.hpp>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actors/actor_scheduler.h"
#include "actors/caf_actor.h"

using namespace troupe::actors;

namespace {

struct SchedulerConfig : caf::actor_system_config {
  SchedulerConfig() {
    load<ActorScheduler>();
    set("scheduler.max-threads", std::size_t{1});
    set("scheduler.max-throughput", std::size_t{5});
  }
};

/// What the actors of a test have done.
struct Noted {
  std::atomic<bool> busy{false};
  std::atomic<int> messages{0}, overlaps{0}, here{0};
  std::thread::id thread = std::this_thread::get_id();

  /// A message is being handled.
  void note() {
    if (busy.exchange(true)) ++overlaps;
    if (std::this_thread::get_id() == thread) ++here;
    ++messages;
    busy = false;
  }
  /// Whether `count` messages are handled within 30 s.
  bool reaches(int count) const {
    for (const auto begin = std::chrono::steady_clock::now(); messages < count; std::this_thread::yield())
      if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(30)) return false;
    return true;
  }
};

/// Notes a message of n, and sends n - 1 to `next`, or to itself, while n > 0.
class Relay final : public CafActor {
 public:
  Relay(caf::actor_config& config, Noted* noted, caf::actor next)
      : CafActor(config), noted_(noted), next_(std::move(next)) {}
  caf::behavior make_behavior() override {
    return {[this](int n) {
      noted_->note();
      if (n > 0) send(next_ ? next_ : caf::actor_cast<caf::actor>(this), n - 1);
    }};
  }

 private:
  Noted* noted_;
  const caf::actor next_;
};

/// Notes each text of 100 equal letters.
class Receiver final : public CafActor {
 public:
  Receiver(caf::actor_config& config, Noted* noted) : CafActor(config), noted_(noted) {}
  caf::behavior make_behavior() override {
    return {[this](const std::string& text) {
      if (text == std::string(100, text[0])) noted_->note();
    }};
  }

 private:
  Noted* noted_;
};

/// Actors of which each sends to the next one, and the last to itself.
std::vector<caf::actor> make_chain(caf::actor_system& system, Noted& noted, int count) {
  std::vector<caf::actor> actors;
  for (int i = 0; i < count; ++i)
    actors.push_back(system.spawn<Relay>(&noted, actors.empty() ? caf::actor{} : actors.back()));
  return actors;
}

void end(const std::vector<caf::actor>& actors) {
  for (const auto& a : actors) caf::anon_send_exit(a, caf::exit_reason::user_shutdown);
}

}  // namespace

TEST_CASE("actors run one at a time and every message is handled, sent by whichever threads, lent or not") {
  Noted noted;
  SchedulerConfig config;
  caf::actor_system system(config);
  const auto actors = make_chain(system, noted, 8);
  constexpr int threads = 4, sends = 2000, hops = 3;
  std::vector<std::thread> senders;
  for (int t = 0; t < threads; ++t)
    senders.emplace_back([&, t] {
      for (int i = 0; i < sends; ++i) {
        const auto& to = actors[static_cast<std::size_t>(i * 5 + t) % actors.size()];
        if (t == 0) {
          caf::anon_send(to, hops);
        } else {
          const LendThread lent;
          caf::anon_send(to, hops);
        }
      }
    });
  for (auto& s : senders) s.join();
  const bool all = noted.reaches(threads * sends * (hops + 1));
  CHECK_MESSAGE(all, noted.messages.load());
  CHECK(noted.overlaps == 0);
  end(actors);
}

TEST_CASE("a thread that is lent has run the actors that it told, and those that they told, when it has it back") {
  Noted noted;
  SchedulerConfig config;
  caf::actor_system system(config);
  const auto actors = make_chain(system, noted, 3);
  int at_once = 0;
  constexpr int tries = 100;
  for (int i = 0; i < tries; ++i) {
    {
      const LendThread lent;
      const LendThread within;
      caf::anon_send(actors.back(), 2);
    }
    at_once += noted.messages == 3 * (i + 1) ? 1 : 0;
    REQUIRE(noted.reaches(3 * (i + 1)));
    std::this_thread::sleep_for(
        std::chrono::milliseconds(1));  // the scheduler's thread, if it was first, is idle again
  }
  // The scheduler's own thread may wake by itself and be first.
  CHECK_MESSAGE(noted.here >= 3 * tries * 9 / 10, noted.here.load());
  CHECK_MESSAGE(at_once >= tries * 9 / 10, at_once);
  end(actors);
}

TEST_CASE("a thread that is lent within another lending runs no actor when the inner one ends, and stays lent") {
  Noted noted;
  SchedulerConfig config;
  caf::actor_system system(config);
  const auto actors = make_chain(system, noted, 3);
  constexpr int tries = 100;
  int at_inner_end = 0, at_end = 0;
  for (int i = 0; i < tries; ++i) {
    const int before = noted.here;
    int within = 0;
    {
      const LendThread lent;
      {
        const LendThread inner;
        caf::anon_send(actors.back(), 2);
      }
      within = noted.here - before;
      caf::anon_send(actors.back(), 2);
      // time for the scheduler's thread, had the message woken it
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    at_inner_end += within;
    at_end += noted.here - before - within;
    REQUIRE(noted.reaches(2 * 3 * (i + 1)));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // that thread, if it was first, is idle again
  }
  CHECK(at_inner_end == 0);
  // The scheduler's own thread may wake by itself and be first.
  CHECK_MESSAGE(at_end >= 2 * 3 * tries * 9 / 10, at_end);
  CHECK(noted.overlaps == 0);
  end(actors);
}

TEST_CASE("a lent thread gets back to its own work though actors go on: the scheduler's thread runs the rest") {
  Noted noted;
  SchedulerConfig config;
  caf::actor_system system(config);
  const auto actors = make_chain(system, noted, 1);
  constexpr int messages = 20'000;
  {
    const LendThread lent;
    caf::anon_send(actors[0], messages - 1);
  }
  const int here = noted.here;
  REQUIRE(noted.reaches(messages));
  CHECK_MESSAGE(noted.here <= 64 * 5, noted.here.load());  // so many actors in a row, so many messages of each
  CHECK(noted.here == here);
  CHECK(noted.overlaps == 0);
  end(actors);
}

TEST_CASE("a message from a thread that is not lent is handled on the scheduler's thread") {
  Noted noted;
  SchedulerConfig config;
  caf::actor_system system(config);
  const auto actors = make_chain(system, noted, 2);
  for (int i = 1; i <= 100; ++i) {
    caf::anon_send(actors.back(), 1);
    REQUIRE(noted.reaches(2 * i));
  }
  CHECK(noted.here == 0);
  end(actors);
}

TEST_CASE(
    "a system of actors ends while lent threads run its last actors, which may take the job that ends its own thread") {
  for (int i = 0; i < 1000; ++i) {
    Noted noted;
    std::atomic<bool> left = false;
    std::thread lent;
    {
      SchedulerConfig config;
      caf::actor_system system(config);
      lent = std::thread([&noted, &left, actors = make_chain(system, noted, 3)]() mutable {
        noted.thread = std::this_thread::get_id();
        {
          const LendThread while_they_end;
          caf::anon_send(actors.back(), 2);
          end(std::as_const(actors));
          actors.clear();
        }
        left = true;
      });
      // A lent thread that has yet to run its first actor would find no system (LendThread's REQUIRES).
      while (noted.here == 0 && !left) std::this_thread::yield();
    }  // waits for the end of all actors, not of the threads that have run them
    lent.join();
    CHECK(noted.overlaps == 0);
    CHECK(noted.messages >= 1);
  }
}

TEST_CASE("what a thread has written into a message is there for the actor; an actor that ends frees messages unread") {
  Noted noted, ended;
  SchedulerConfig config;
  caf::actor_system system(config);
  const auto reads = system.spawn<Receiver>(&noted);
  constexpr int threads = 3, sends = 1000;
  std::vector<std::thread> senders;
  for (int t = 0; t < threads; ++t)
    senders.emplace_back([&, t] {
      for (int i = 0; i < sends; ++i) {
        const std::string text(100, static_cast<char>('a' + i % 26));
        const auto ends = system.spawn<Receiver>(&ended);
        caf::anon_send(ends, text);
        end({ends});  // is read before the text, if that waits
        caf::anon_send(ends, text);
        if (t == 0) {
          caf::anon_send(reads, text);
        } else {
          const LendThread lent;
          caf::anon_send(reads, text);
        }
      }
    });
  for (auto& s : senders) s.join();
  CHECK(noted.reaches(threads * sends));
  end({reads});
}
