#include "runtime/worker/conductor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "devices/base/check.h"

namespace troupe::runtime {

using actors::Token;

namespace {

/// The Commits, then the exponents: see actors::Commit.
std::vector<std::byte> commit_payload(const CommitStep& m) {
  const auto commits = std::as_bytes(std::span(m.commits)), exponents = std::as_bytes(std::span(m.exponents));
  std::vector<std::byte> payload(commits.begin(), commits.end());
  payload.insert(payload.end(), exponents.begin(), exponents.end());
  return payload;
}

/// Of what a place reports in a step: a message has room for it, with what surrounds each report there.
constexpr std::size_t reported_bytes_max = control_bytes_max / 2;
std::size_t size_in_message(const Report& r) {
  return 100 + r.name.size() + r.bytes.size() + r.values.size() * sizeof(double);
}

}  // namespace

Conductor::Conductor(caf::actor_config& config, ConductorSpec spec)
    : actors::CafActor(config), spec_(std::move(spec)), order_(spec_.order) {
  actors::set_quiet_handlers(*this, [this](const Status& status) { spec_.send(WorkerFailed{"conductor", status}); });
}

caf::behavior Conductor::make_behavior() {
  return {
      [this](actors::Wire& wire) { actors_ = std::move(wire.actors); },
      [this](const SessionSays& m) { session_says(m.message); },
      [this](const actors::Ack& m) {
        auto& channel = spec_.channels.at(m.port);
        channel.control.ack(m.slot, deliver(channel));
      },
      [this](ActorReports& m) {
        m.report.program = m.program;
        const bool of_the_job = m.report.kind == Report::Kind::saving || m.report.kind == Report::Kind::parameter;
        auto& [reports, bytes] = reports_[{spec_.order.begun_as[m.program], m.report.step}];
        if (!of_the_job && (bytes += size_in_message(m.report)) > reported_bytes_max)
          return spec_.send(WorkerFailed{
              "conductor",
              invalid(fmt::format("with '{}', of {} bytes, this place has reported {} bytes in step {} of program {}: "
                                  "expected at most {}",
                                  m.report.name, size_in_message(m.report), bytes, m.report.step, m.program,
                                  reported_bytes_max))});
        if (of_the_job || spec_.fed[m.program]) spec_.send(EarlyReport{m.program, std::move(m.report)});
        else reports.push_back(std::move(m.report));
      },
      [this](const actors::GradientPart& m) { add(m); },
      [this](const actors::StepClosed& m) { closed(m); },
      [this](const actors::Failed& m) {
        spec_.send(WorkerFailed{m.actor, m.status});
      },
      [this](const PeerDown& m) {
        spec_.send(WorkerFailed{"transport", m.status.in(fmt::format("peer rank {}", m.rank))});
      },
      [this](const actors::Explanation& m) {
        explained_ += m.text + "\n";
        if (++explanations_ == actors_.size()) {
          spec_.send(Explained{explained_});
          explained_.clear();
          explanations_ = 0;
        }
      },
  };
}

std::function<void(const actors::Reader&, const Token&)> Conductor::deliver(const ConductorChannel& channel) {
  return [this, &channel](const actors::Reader& r, const Token& t) {
    send(actors_[r.actor], actors::Arrive{r.port, t});
    if (channel.kind == PlanChannel::Kind::feed && channel.control.first_reader(r))
      spec_.send(FeedTaken{channel.name, channel.program, t.step, t.microbatch});
  };
}

void Conductor::push(ConductorChannel& channel, const Token& token, std::vector<std::byte> payload) {
  channel.control.push(token, std::move(payload), deliver(channel));
}

void Conductor::session_says(const ToWorker& message) {
  if (const Status s = order_.check(message); !s.ok()) return spec_.send(WorkerFailed{"conductor", s});
  if (const auto* m = std::get_if<BeginRun>(&message)) {
    if (spec_.on_begin) spec_.on_begin(*m);
    for (const auto& a : actors_) send(a, actors::Begin{m->step, m->readers});
  } else if (const auto* m = std::get_if<Go>(&message)) {
    Token t;
    t.step = m->step;
    for (auto& [id, c] : spec_.channels)
      if (c.kind == PlanChannel::Kind::go && spec_.order.begun_as[static_cast<std::size_t>(c.program)] == m->program)
        push(c, t, {});
  } else if (const auto* m = std::get_if<CommitStep>(&message)) {
    if (spec_.on_commit) spec_.on_commit(m->step);
    Token t;
    t.step = m->step;
    t.readers = m->readers;
    const auto payload = commit_payload(*m);
    for (auto& [id, c] : spec_.channels)
      if (c.kind == PlanChannel::Kind::commit) push(c, t, payload);
  } else if (const auto* m = std::get_if<Feed>(&message)) {
    Token t;
    t.step = m->step;
    t.microbatch = m->microbatch;
    for (auto& [id, c] : spec_.channels)
      if (c.kind == PlanChannel::Kind::feed && c.name == m->name && c.program == m->program) push(c, t, m->payload);
  } else if (std::holds_alternative<ExplainAll>(message)) {
    for (const auto& a : actors_) send(a, actors::Explain{});
    if (actors_.empty()) spec_.send(Explained{});
  }
}

void Conductor::add(const actors::GradientPart& part) {
  const auto put = [](auto& all, std::size_t size, const auto& some, std::size_t first) {
    if (some.empty()) return;
    ASSERT(first + some.size() <= size, first, some.size(), size);
    all.resize(size);
    std::copy(some.begin(), some.end(), all.begin() + static_cast<std::ptrdiff_t>(first));
  };
  put(gradients_.square_sums, spec_.square_sums, part.told.square_sums, part.first_square_sum);
  put(gradients_.peaks, spec_.peaks, part.told.peaks, part.first_peak);
  for (const auto& b : part.told.bad)
    gradients_.bad.push_back({static_cast<std::int32_t>(part.first_peak) + b.peak, b.microbatch});
}

void Conductor::closed(const actors::StepClosed& m) {
  const std::int32_t program = spec_.order.begun_as[m.program];
  const std::pair<std::int32_t, std::int64_t> key{program, m.step};
  if (++closing_[key] < spec_.order.closers[static_cast<std::size_t>(program)]) return;
  closing_.erase(key);
  Closed out{program, m.step, std::move(reports_[key].reports), 0, {}};
  reports_.erase(key);
  if (program == spec_.order.step_program) {
    order_.closed(m.step);
    out.gradients = std::exchange(gradients_, {});
    const auto now = spec_.busy_ns->load();
    out.busy_ns = now - busy_reported_ns_;
    busy_reported_ns_ = now;
  }
  spec_.send(std::move(out));
}

}  // namespace troupe::runtime
