// A place of a simulated cluster, and the hash of what happens there. Internal to the simulation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/link_watch.h"
#include "devices/base/philox.h"
#include "devices/base/trace.h"
#include "devices/sim/sim_device.h"
#include "runtime/elastic/generation_fence.h"
#include "runtime/launch/sim_transport.h"
#include "runtime/worker/worker.h"

namespace troupe::runtime {

/// A hash of values in their order.
class RollingHash {
 public:
  void add(std::uint64_t word) {
    value_ = (value_ ^ word) * 0x9E3779B97F4A7C15ull;
    value_ ^= value_ >> 32;
  }
  void add(std::span<const std::byte> bytes) {
    add(bytes.size());
    for (; bytes.size() >= sizeof(std::uint64_t); bytes = bytes.subspan(sizeof(std::uint64_t))) {
      std::uint64_t word;
      std::memcpy(&word, bytes.data(), sizeof word);
      add(word);
    }
    for (std::byte b : bytes) add(static_cast<std::uint64_t>(b));
  }
  template <class... Numbers>
  void add_all(Numbers... numbers) {
    (add(static_cast<std::uint64_t>(numbers)), ...);
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0;
};

/// Hashes the acts of a place's actors.
class ActsOf final : public TraceSink {
 public:
  ActsOf(RollingHash& hash, Rank rank) : hash_(hash), rank_(rank) {}
  void record(TraceSpan s) override {
    hash_.add_all(rank_, name_hash(s.row), s.begin_ns, s.end_ns, s.step, s.microbatch, s.flow_in, s.flow_out);
  }

 private:
  RollingHash& hash_;
  const Rank rank_;
};

/// What a process of a place has. The production worker over simulated parts.
struct SimProcess {
  enum class State { runs, hangs, ended, gone };  // of itself; killed
  State state = State::runs;
  bool lives() const { return state == State::runs || state == State::hangs; }
  bool cut_off = false;    // from the coordinator
  bool connected = false;  // it has the addresses of its peers
  bool beats = false;      // it has begun to tell that it lives
  bool leaves = false;     // its generation, and takes no order meanwhile
  bool enters = false;     // as soon as it has left
  Rank rank = -1;          // once it knows
  const Plan* plan = nullptr;
  std::vector<Rank> ends;  // by rank: the ends of the network that its generation has
  GenerationFence fence;
  std::int64_t paused_until_ns = 0;
  std::int64_t to_ns = 0, from_ns = 0;  // when the last control message arrives, each way: none overtakes another
  std::vector<ToWorker> early;          // what has come while its worker is made
  std::shared_ptr<std::atomic<std::int64_t>> progress;  // of its worker
  std::int64_t acts = 0;                                // that it has told of
  std::unique_ptr<ActsOf> acts_of;
  std::unique_ptr<RankedTransport> transport;
  std::unique_ptr<comm::LinkWatch> links;  // while the worker runs
  std::unique_ptr<SimDevice> device;
  std::unique_ptr<Worker> worker;
};

/// One place of the cluster: its memory outlives its processes.
struct SimPlace : SimProcess {
  std::unique_ptr<Buffer> memory;               // null: each worker has its own
  std::unique_ptr<Buffer> home;                 // what it had before CoordinatorSink::reshape
  std::unique_ptr<Buffer> guards, home_guards;  // likewise, of what it guards
  std::int64_t process = 0;                     // the number of its process, from 0
  std::int64_t counts_from = 0;                 // of processes before, nothing that comes is heard
  std::optional<Closed> vote;                   // its last one
  std::optional<ToWorker> order;                // the last BeginRun or CommitStep to it
  const Plan* told_plan = nullptr;              // before its last Hello
  Rank told_rank = -1;                          // with it
};

}  // namespace troupe::runtime
