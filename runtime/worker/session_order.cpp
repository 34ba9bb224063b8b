#include "runtime/worker/session_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

namespace troupe::runtime {

namespace {

Status wrong(const std::string& what, const std::string& due) {
  return Status(Code::internal, "the session says " + what + ", and " + due);
}

}  // namespace

SessionOrder::SessionOrder(OrderSpec spec)
    : spec_(std::move(spec)), runs_(spec_.feeds.size()), begun_(spec_.closers.size(), -1) {}

Status SessionOrder::check(const ToWorker& message) {
  return std::visit(
      [this](const auto& m) -> Status {
        using Message = std::decay_t<decltype(m)>;
        if constexpr (std::is_same_v<Message, BeginRun> || std::is_same_v<Message, Go> ||
                      std::is_same_v<Message, CommitStep> || std::is_same_v<Message, Feed>)
          return check(m);
        else return {};
      },
      message);
}

Status SessionOrder::reads(const std::string& what, ProgramMask readers) {
  const auto programs = spec_.closers.size();
  if (programs < 8 * sizeof readers && (readers >> programs) != 0)
    return wrong(fmt::format("{} with readers beyond program {}", what, programs - 1), "the plan has no such program");
  due_ = readers;
  for (std::size_t p = 0; p < spec_.begun_as.size(); ++p)
    if (spec_.begun_as[p] == spec_.step_program) due_ &= ~(ProgramMask{1} << p);
  return {};
}

Status SessionOrder::check(const BeginRun& m) {
  const std::string what = fmt::format("begin at step {}", m.step);
  if (running_) return wrong(what, "the run has begun");
  if (m.step < 0) return wrong(what, "steps are counted from 0");
  if (m.exponents.size() != spec_.exponents)
    return wrong(fmt::format("{} with {} exponents of gradient sums", what, m.exponents.size()),
                 fmt::format("the plan needs {}", spec_.exponents));
  for (const std::int32_t param : m.wanted)
    if (param < 0 || static_cast<std::size_t>(param) >= spec_.exponents)
      return wrong(fmt::format("{} and wants parameter {}", what, param), "the plan trains no such parameter");
  TROUPE_TRY(reads(what, m.readers));
  running_ = true;
  first_ = version_ = m.step;
  closed_ = begun_[spec_.step_program] = m.step - 1;
  return {};
}

Status SessionOrder::check(const Go& m) {
  const std::string what = fmt::format("go to step {} of program {}", m.step, m.program);
  if (!running_) return wrong(what, "the run has not begun");
  if (m.program < 0 || m.program >= static_cast<std::int32_t>(spec_.closers.size()))
    return wrong(what, "the plan has no such program");
  if (spec_.begun_as[static_cast<std::size_t>(m.program)] != m.program)
    return wrong(what, fmt::format("it begins with program {}", spec_.step_program));
  auto& begun = begun_[static_cast<std::size_t>(m.program)];
  if (m.program == spec_.step_program) {
    if (m.step != begun + 1 || m.step > version_ + 1)
      return wrong(what, fmt::format("step {} is due, at most two ahead of {} commits", begun + 1, version_));
  } else {
    const ProgramMask bit = ProgramMask{1} << m.program;
    if (m.step != version_ || (due_ & bit) == 0)
      return wrong(what, fmt::format("it does not read version {}, or has begun on it", version_));
    due_ &= ~bit;
  }
  begun = m.step;
  return {};
}

Status SessionOrder::check(const CommitStep& m) {
  const std::string what = fmt::format("commit of step {}", m.step);
  if (!running_ || m.step != version_)
    return wrong(what, running_ ? fmt::format("the commit of step {} is due", version_) : "the run has not begun");
  if (begun_[spec_.step_program] < m.step) return wrong(what, "the step has not begun");
  if (spec_.closers[spec_.step_program] > 0 && closed_ < m.step)
    return wrong(what, "this place has not closed the step");
  if (due_ != 0) return wrong(what, fmt::format("a program that reads version {} has not begun", version_));
  if (m.exponents.size() != spec_.exponents)
    return wrong(fmt::format("{} with {} exponents of gradient sums", what, m.exponents.size()),
                 fmt::format("the plan needs {}", spec_.exponents));
  if (m.commits.size() != spec_.commits)
    return wrong(fmt::format("{} of {} programs", what, m.commits.size()),
                 fmt::format("{} of the plan train", spec_.commits));
  TROUPE_TRY(reads(what, m.readers));
  ++version_;
  return {};
}

Status SessionOrder::check(const Feed& m) {
  const std::string what = fmt::format("feed '{}', microbatch {} of step {} of program {}", m.name, m.microbatch,
                                       m.step, m.program);
  const auto at = std::find_if(spec_.feeds.begin(), spec_.feeds.end(),
                               [&](const FedChannel& f) { return f.name == m.name && f.program == m.program; });
  if (at == spec_.feeds.end() || at->microbatches.empty()) return wrong(what, "this place does not read it");
  const FedChannel& feed = *at;
  Run& run = runs_[static_cast<std::size_t>(at - spec_.feeds.begin())];
  if (run.next == feed.microbatches.size()) run.next = 0;
  const auto program = static_cast<std::size_t>(spec_.begun_as[static_cast<std::size_t>(m.program)]);
  const bool due = run.next == 0 ? m.step > run.step && m.step <= begun_[program] : m.step == run.step;
  if (!due || m.microbatch != feed.microbatches[run.next]) return wrong(what, "another microbatch of the feed is due");
  if (m.payload.size() != feed.bytes)
    return wrong(fmt::format("{} with {} bytes", what, m.payload.size()), fmt::format("its tensor has {}", feed.bytes));
  run.step = m.step;
  ++run.next;
  return {};
}

}  // namespace troupe::runtime
