#include "runtime/worker/session_order.h"

#include <algorithm>
#include <type_traits>

namespace troupe::runtime {

namespace {

Status wrong(const std::string& what, const std::string& due) {
  return Status(Code::internal, "the session says " + what + ", and " + due);
}

}  // namespace

SessionOrder::SessionOrder(std::vector<std::int32_t> closers, std::size_t exponents, std::vector<FedChannel> feeds)
    : closers_(std::move(closers)), exponents_(exponents), feeds_(std::move(feeds)), runs_(feeds_.size()),
      begun_(closers_.size(), -1) {}

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
  const auto programs = closers_.size();
  if (programs < 8 * sizeof readers && (readers >> programs) != 0)
    return wrong(what + " with readers beyond program " + std::to_string(programs - 1), "the plan has no such program");
  due_ = readers & ~ProgramMask{1};
  return {};
}

Status SessionOrder::check(const BeginRun& m) {
  const std::string what = "begin at step " + std::to_string(m.step);
  if (running_) return wrong(what, "the run has begun");
  if (m.step < 0) return wrong(what, "steps are counted from 0");
  if (m.exponents.size() != exponents_)
    return wrong(what + " with " + std::to_string(m.exponents.size()) + " exponents of gradient sums",
                 "the plan needs " + std::to_string(exponents_));
  TROUPE_TRY(reads(what, m.readers));
  running_ = true;
  first_ = version_ = m.step;
  closed_ = begun_[0] = m.step - 1;
  return {};
}

Status SessionOrder::check(const Go& m) {
  const std::string what = "go to step " + std::to_string(m.step) + " of program " + std::to_string(m.program);
  if (!running_) return wrong(what, "the run has not begun");
  if (m.program < 0 || m.program >= static_cast<std::int32_t>(closers_.size()))
    return wrong(what, "the plan has no such program");
  auto& begun = begun_[static_cast<std::size_t>(m.program)];
  if (m.program == 0) {
    if (m.step != begun + 1 || m.step > version_ + 1)
      return wrong(what, "step " + std::to_string(begun + 1) + " is due, at most two ahead of " +
                             std::to_string(version_) + " commits");
  } else {
    const ProgramMask bit = ProgramMask{1} << m.program;
    if (m.step != version_ || (due_ & bit) == 0)
      return wrong(what, "it does not read version " + std::to_string(version_) + ", or has begun on it");
    due_ &= ~bit;
  }
  begun = m.step;
  return {};
}

Status SessionOrder::check(const CommitStep& m) {
  const std::string what = "commit of step " + std::to_string(m.step);
  if (!running_ || m.step != version_)
    return wrong(what,
                 running_ ? "the commit of step " + std::to_string(version_) + " is due" : "the run has not begun");
  if (begun_[0] < m.step) return wrong(what, "the step has not begun");
  if (closers_[0] > 0 && closed_ < m.step) return wrong(what, "this place has not closed the step");
  if (due_ != 0) return wrong(what, "a program that reads version " + std::to_string(version_) + " has not begun");
  if (m.exponents.size() != exponents_)
    return wrong(what + " with " + std::to_string(m.exponents.size()) + " exponents of gradient sums",
                 "the plan needs " + std::to_string(exponents_));
  TROUPE_TRY(reads(what, m.readers));
  ++version_;
  return {};
}

Status SessionOrder::check(const Feed& m) {
  const std::string what = "feed '" + m.name + "', microbatch " + std::to_string(m.microbatch) + " of step " +
                           std::to_string(m.step) + " of program " + std::to_string(m.program);
  const auto at = std::find_if(feeds_.begin(), feeds_.end(),
                               [&](const FedChannel& f) { return f.name == m.name && f.program == m.program; });
  if (at == feeds_.end() || at->microbatches.empty()) return wrong(what, "this place does not read it");
  const FedChannel& feed = *at;
  Run& run = runs_[static_cast<std::size_t>(at - feeds_.begin())];
  if (run.next == feed.microbatches.size()) run.next = 0;
  const bool due = run.next == 0 ? m.step > run.step && m.step <= begun_[static_cast<std::size_t>(m.program)]
                                 : m.step == run.step;
  if (!due || m.microbatch != feed.microbatches[run.next]) return wrong(what, "another microbatch of the feed is due");
  if (m.payload.size() != feed.bytes)
    return wrong(what + " with " + std::to_string(m.payload.size()) + " bytes",
                 "its tensor has " + std::to_string(feed.bytes));
  run.step = m.step;
  ++run.next;
  return {};
}

}  // namespace troupe::runtime
