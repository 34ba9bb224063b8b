#include "runtime/elastic/told_once.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

namespace troupe::runtime {

/// What the session tells of checkpoints, held back as all that concerns their version.
class ToldOnce::Held final : public SnapshotObserver {
 public:
  Held(ToldOnce& told, SnapshotObserver& inner) : told_(told), inner_(inner) {}
  bool wants(std::int64_t version) const override { return inner_.wants(version); }
  bool has_room() const override { return inner_.has_room(); }
  void begun(std::int64_t version) override { inner_.begun(version); }
  void skipped(std::int64_t version) override { inner_.skipped(version); }
  void saving(std::int64_t version, Rank place, const Report& report) override {
    inner_.saving(version, place, report);
  }
  void written(std::int64_t version, const std::vector<Report>& shards, const SumState& sums) override {
    told_.written_ = std::max(told_.written_, version);
    told_.hold(version, [this, version, shards, sums] { inner_.written(version, shards, sums); });
  }

 private:
  ToldOnce& told_;
  SnapshotObserver& inner_;
};

ToldOnce::ToldOnce(SessionOptions application, bool holds)
    : application_(std::move(application)), holds_(holds), first_(application_.first_step),
      asked_to_(application_.first_step) {}
ToldOnce::~ToldOnce() = default;

SnapshotObserver* ToldOnce::observer(SnapshotObserver& checkpoints) {
  observer_ = std::make_unique<Held>(*this, checkpoints);
  return observer_.get();
}

SessionOptions ToldOnce::options() {
  SessionOptions s = application_;
  s.on_step = [this](const StepResult& r) { step(r); };
  // Told before the commit is sent that lets places overwrite what a job goes on from whose process dies now.
  s.on_voted = [this](std::int64_t step) {
    if (holds_) tell_to(step);
  };
  s.on_closed = [this](const std::string& program, std::int64_t version, const std::vector<Report>& reports) {
    closed(program, version, reports);
  };
  if (s.on_started)
    s.on_started = [this](const std::string& program, std::int64_t version) {
      hold(version, [this, program, version] {
        if (!holds_ || started_.insert({program, version}).second) application_.on_started(program, version);
      });
    };
  if (s.readers) s.readers = [this](std::int64_t version) { return readers(version); };
  return s;
}

std::vector<std::string> ToldOnce::readers(std::int64_t version) {
  if (version >= asked_to_) {
    auto named = application_.readers(version);
    if (!holds_) return named;
    if (!named.empty()) asked_[version] = std::move(named);
    asked_to_ = version + 1;
  }
  const auto it = asked_.find(version);
  if (it == asked_.end()) return {};
  std::vector<std::string> due = it->second;
  std::erase_if(due, [&](const std::string& program) { return closed_.count({program, version}) > 0; });
  return due;
}

void ToldOnce::hold(std::int64_t version, std::function<void()> event) {
  newest_ = std::max(newest_, version);
  if (!holds_) return event();
  event = [this, now = now_, event = std::move(event)] {
    if (application_.on_event) application_.on_event(now.first, now.second);
    event();
  };
  // An event of a version comes after the commit that makes it, so after all votes of the step before.
  tell_to(newest_ - 1);
  if (version < newest_) event();
  else held_.emplace_back(version, std::move(event));
}

void ToldOnce::step(const StepResult& result) {
  hold(result.step + 1, [this, result] { tell_step(result); });
}

void ToldOnce::closed(const std::string& program, std::int64_t version, const std::vector<Report>& reports) {
  hold(version, [this, program, version, reports] {
    if (holds_ && !closed_.insert({program, version}).second) return;
    if (application_.on_closed) application_.on_closed(program, version, reports);
  });
}

void ToldOnce::tell_to(std::int64_t version) {
  while (!held_.empty() && held_.front().first <= version) {
    const auto event = std::move(held_.front().second);
    held_.pop_front();
    event();
  }
}

void ToldOnce::tell_step(const StepResult& result) {
  std::vector<std::pair<double, double>> numbers{{result.loss, result.grad_norm}};
  bool void_step = result.void_step;
  for (const ProgramResult& other : result.others) {
    numbers.emplace_back(other.loss, other.grad_norm);
    void_step |= other.void_step;
  }
  if (const auto at = static_cast<std::size_t>(result.step - first_); holds_ && at < told_.size()) {
    const auto same = [](double a, double b) {
      return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
    };
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const auto [loss, norm] = numbers[i];
      const auto [told_loss, told_norm] = told_[at][i];
      if (contradiction_.ok() && !(same(loss, told_loss) && same(norm, told_norm)))
        contradiction_ = Status(
            Code::internal,
            fmt::format("step {}{}, which is repeated, has loss {:.17g} and norm {:.17g}, and was told with {:.17g} "
                        "and {:.17g}: the job is not repeatable (an actor that keeps state, memory that is damaged)",
                        result.step, i == 0 ? "" : " of program '" + result.others[i - 1].program + "'", loss, norm,
                        told_loss, told_norm));
    }
    return;
  }
  if (holds_) told_.push_back(std::move(numbers));
  void_steps_ += void_step ? 1 : 0;
  if (application_.on_step) application_.on_step(result);
}

void ToldOnce::go_on_from(std::int64_t version) {
  written_ = -1;
  tell_to(version);
  held_.clear();
  newest_ = version;
}

}  // namespace troupe::runtime
