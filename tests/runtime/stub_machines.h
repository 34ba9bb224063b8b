// The production side of a job on many machines (Gathering, RunningJob) and production agents, with processes that say
// what a worker says as it begins, and do nothing: what it takes to bring them together.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "devices/base/clock.h"
#include "runtime/agents/agent.h"
#include "runtime/launch/running_job.h"

namespace troupe::test {

using namespace troupe::runtime;

/// Answers what a worker hears before its first step, message by message: plan, Hello, Enter, Connect.
class StubProcesses final : public PlaceProcesses {
 public:
  explicit StubProcesses(ProcessObserver& observer) : observer_(observer) {}
  Expected<std::int64_t> start(PlaceId place, const std::vector<std::string>&, bool) override {
    heard_[place] = 0;
    return std::int64_t{1};
  }
  Expected<std::int64_t> restart(PlaceId, bool) override { return std::int64_t{1}; }
  Status post(PlaceId to, JobGeneration of, SharedBytes) override {
    const int nth = ++heard_.at(to);
    if (nth == 3) observer_.heard(to, {of, encode(FromWorker(WorkerAddress{std::string(64, 'a')}))});
    if (nth == 4) observer_.heard(to, {of, encode(FromWorker(Ready{}))});
    return {};
  }
  void kill(PlaceId) override {}
  void dismiss(PlaceId) override {}
  std::int64_t number(PlaceId) override { return 1; }
  std::optional<ProcessEnd::Kind> how_it_ended(PlaceId) override { return std::nullopt; }
  std::string memory_name(PlaceId) override { return "memory"; }
  void look_at_memory(PlaceId, const std::function<void(std::span<std::byte>)>&) override {}
  Status renew_memory(PlaceId) override { return {}; }
  void forget_memory(PlaceId, bool) override {}
  Status end_all(int, int) override { return {}; }
  Status finish(int, int) override { return {}; }

 private:
  ProcessObserver& observer_;
  std::map<PlaceId, int> heard_;
};

/// A machine with its agent, and what both ends have said.
struct StubMachine {
  std::unique_ptr<Agent> agent;
  std::vector<std::vector<std::byte>> to_agent, to_job;
  std::function<void()> read;  // by the job
  std::int64_t messages_to_agent = 0, messages_to_job = 0, bytes_to_agent = 0;
};

class StubLink final : public AgentLink {
 public:
  explicit StubLink(StubMachine& machine) : machine_(machine) {}
  int fd() const override { return -1; }
  short events() const override { return 0; }
  void on_readable(std::function<void()> read) override { machine_.read = std::move(read); }
  Status serve(std::deque<std::vector<std::byte>>& messages) override {
    for (auto& m : std::exchange(machine_.to_job, {})) messages.push_back(std::move(m));
    return {};
  }
  Status post(std::span<const std::byte> message) override {
    ++machine_.messages_to_agent;
    machine_.bytes_to_agent += std::ssize(message);
    machine_.to_agent.emplace_back(message.begin(), message.end());
    return {};
  }

 private:
  StubMachine& machine_;
};

/// Brings a job of `plan` together on so many machines, until it runs.
class StubMachines {
 public:
  StubMachines(const Plan& plan, int machines, std::int32_t places, bool mixed_hardware = false)
      : machines_(static_cast<std::size_t>(machines)) {
    options_.machines.count = machines;
    options_.machines.mixed_hardware = mixed_hardware;
    options_.recovers = true;
    options_.session.steps = 4;
    Gathering gathering(options_.machines, "program", {}, clock_.now_ns());
    for (int m = 0; m < machines; ++m) {
      StubMachine& machine = machines_[static_cast<std::size_t>(m)];
      machine.agent = std::make_unique<Agent>(
          [&machine](const FromAgent& message) {
            ++machine.messages_to_job;
            machine.to_job.push_back(encode(message));
          },
          [](ProcessObserver& observer) { return std::make_unique<StubProcesses>(observer); });
      Joins joins{"machine" + std::to_string(m), places, "program", "", "host" + std::to_string(m), {}};
      joins.numbers = "x";
      gathering.take({std::make_unique<StubLink>(machine), "peer", std::move(joins)}, clock_.now_ns());
    }
    must(gathering.done(clock_.now_ns()).status());
    job_ = std::make_unique<RunningJob>(plan, options_, coordinator_options(options_, plan), RunningJob::Parts{},
                                        clock_, [](PlaceId, const std::string&) {});
    Status s = job_->begin_on(gathering.take_joined(), "program");
    if (s.ok()) s = job_->start(job_->first_generation({}, 1), {});
    must(s);
    job_->coordinator().started(clock_.now_ns());
    while (!job_->coordinator().runs()) turn();
  }
  const std::vector<StubMachine>& machines() const { return machines_; }
  const Coordinator& coordinator() const { return job_->coordinator(); }
  RunningJob& job() { return *job_; }

 private:
  static void must(const Status& s) {
    if (s.ok()) return;
    std::fprintf(stderr, "%s\n", s.message().c_str());
    std::abort();
  }

  void turn() {
    for (StubMachine& m : machines_) {
      for (const auto& bytes : std::exchange(m.to_agent, {})) {
        const auto order = decode_to_agent(bytes);
        must(order.status());
        if (!std::holds_alternative<Welcome>(*order)) m.agent->take(*order);
      }
      if (!m.to_job.empty()) m.read();
    }
    job_->bring();
    (void)job_->decide(clock_.now_ns());
    if (job_->coordinator().over()) must(job_->coordinator().take_result().status);
  }

  ManualClock clock_;
  JobOptions options_;
  std::vector<StubMachine> machines_;
  std::unique_ptr<RunningJob> job_;
};

}  // namespace troupe::test
