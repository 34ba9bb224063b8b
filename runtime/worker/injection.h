// Drills: what is done to a worker, and at which of its acts, so that users and tests see what comes of it:
// "SIGKILL@update:mid#3/worker2" kills worker 2 in the middle of its third update, "CUT@forward#9/worker1-worker2" cuts
// the network between workers 1 and 2 as worker 1 begins its ninth forward act.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "actors/executor.h"
#include "runtime/plan/plan.h"

namespace troupe::runtime {

struct Injection {
  enum class Action : std::uint8_t {
    kill,   ///< SIGKILL
    stop,   ///< SIGSTOP
    crash,  ///< SIGSEGV
    exit,   ///< exits with code 1
    hang,   ///< the act never ends; the process goes on otherwise
    drop,   ///< an exchange that never begins: its messages are lost
    cut,    ///< no message passes between the worker and `peer` any more
    slow    ///< from then on each act takes slow_times as long
  };
  enum class Phase : std::uint8_t { before, mid, after };
  Action action = Action::kill;
  /// "forward", "backward", "weights", "exchange", "norm", "update", "gather", "snapshot", "write", "copy", "digest",
  /// "actor" (user-defined); "enter", "commit" (that has come and that the actors have not); or an actor's name in the
  /// plan.
  std::string act;
  Phase phase = Phase::mid;
  std::int64_t nth = 1;  ///< such act of the worker's first process, from 1
  Rank rank = 0;
  Rank peer = -1;  ///< of a cut: the other end
  bool operator==(const Injection&) const = default;
};

/// Of "ACTION@ACT[:PHASE][#N]/workerR", for a cut "/workerR-workerP". Error: names the part that is not understood, and
/// what may stand there.
Expected<Injection> parse_injection(std::string_view text);
std::string to_string(const Injection& injection);
/// Error: the plan has no such worker; or the worker no such act, with those that it has.
Status check_injection(const Plan& plan, const Injection& injection);

/// Does at a worker's acts what its injections say. Thread-safe.
class Injector {
 public:
  /// Those that hit one act.
  using Due = std::vector<const Injection*>;
  explicit Injector(std::vector<Injection> injections);
  bool empty() const { return injections_.empty(); }
  /// Whether one of them cuts links.
  bool cuts() const;
  /// What cuts the way to a peer, from now on.
  void on_cut(std::function<void(Rank peer)> cut);
  /// An act begins that each of `names` names: counts it, and does what comes before it.
  Due begin(const std::vector<std::string>& names);
  /// Does what comes in the middle of an act, or after it.
  void reach(const Due& due, Injection::Phase phase);
  /// Where acts are slow: makes the one that has run since `begin_ns`, on this stream, last as long as it should.
  void slow_down(std::int64_t begin_ns, const Parallel& parallel) const;
  bool slows() const { return slows_; }
  /// Whether the act is an exchange that is lost.
  static bool drops(const Due& due);
  /// The three at once, of an act that takes no time.
  void pass(const std::string& name);
  /// Those whose act has not come.
  std::vector<std::string> missed() const;

 private:
  std::vector<Injection> injections_;
  void execute(const Injection& injection);

  std::vector<std::atomic<std::int64_t>> begun_;  // acts that each of them counts
  std::atomic<bool> slows_ = false;
  std::mutex mutex_;
  std::function<void(Rank)> cut_;
};

inline constexpr int slow_times = 3;  ///< Action::slow

/// What --inject calls the acts of an actor: its kind, or its pass, then its name.
std::vector<std::string> injected_names(const PlanActor& actor);
/// `body`, with the injector at its acts.
std::unique_ptr<actors::Body> injected(std::unique_ptr<actors::Body> body, std::vector<std::string> names,
                                       Injector& injector);
/// The same for an executor without a body: its middle is when the act has begun.
std::shared_ptr<actors::Executor> injected(std::shared_ptr<actors::Executor> executor, std::vector<std::string> names,
                                           Injector& injector);

}  // namespace troupe::runtime
