#include "runtime/session/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <tuple>

#include "runtime/session/divergence.h"

namespace troupe::runtime {

using actors::ProgramMask;

namespace {

/// The parameters that have sums: none where the plan does not train.
std::vector<PlanParam> summed(const Plan& plan) { return plan.trains ? plan.params : std::vector<PlanParam>{}; }

SumState sums_at_begin(const SessionOptions& o) { return o.sums.value_or(SumState{o.first_step, {}}); }

/// By (name, microbatch).
void sort(std::vector<Report>& reports) {
  std::stable_sort(reports.begin(), reports.end(), [](const Report& a, const Report& b) {
    return std::tie(a.name, a.microbatch) < std::tie(b.name, b.microbatch);
  });
}

}  // namespace

Session::Session(const Plan& plan, SessionOptions options, SnapshotObserver* snapshots, Send send)
    : plan_(plan), options_(std::move(options)), snapshots_(snapshots), send_(std::move(send)),
      workers_(plan.workers()), snapshot_(snapshots ? plan.program("snapshot") : -1),
      copy_(options_.copy_every > 0 ? plan.program("copy") : -1),
      decisions_(plan, options_.first_step, options_.steps, votes(plan), *this), reductions_(plan), gradients_(plan),
      sums_(summed(plan), plan.step_spec().microbatches, sums_at_begin(options_)) {}

void Session::to_all(const ToWorker& message) {
  for (Rank r = 0; r < workers_; ++r) send_(r, message);
}

Expected<std::vector<std::int32_t>> Session::readers(std::int64_t version, bool last) {
  std::vector<std::int32_t> out;
  if (!plan_.trains) return out;
  if (last && holds_) {
    out.push_back(plan_.program("digest"));
    if (copy_ >= 0) out.push_back(copy_);  // the job goes on from it
    return out;
  }
  TROUPE_TRY(refused_ = add_named(version, out));
  if (last) out.push_back(plan_.program("digest"));
  else if (is_copied(version)) out.push_back(copy_);
  if (snapshot_ < 0 || !snapshots_->wants(version)) return out;
  if (last || snapshots_->has_room()) out.push_back(snapshot_);
  else snapshots_->skipped(version);
  return out;
}

Status Session::add_named(std::int64_t version, std::vector<std::int32_t>& out) const {
  if (!options_.readers) return {};
  for (const auto& name : options_.readers(version)) {
    const auto p = plan_.program(name);
    const char* wrong = nullptr;
    if (p < 0) wrong = "which the plan does not have";
    else if (plan_.is_step_program(p) || name == "digest" || name == "snapshot" || name == "copy")
      wrong = "which the session begins by itself";
    else if (std::find(out.begin(), out.end(), p) != out.end()) wrong = "twice";
    if (wrong)
      return invalid(
          fmt::format("SessionOptions::readers names for version {} the program '{}', {}", version, name, wrong));
    out.push_back(p);
  }
  return {};
}

void Session::go(ProgramStep step) {
  if (!plan_.is_step_program(step.program) && step.program != copy_ && options_.on_started)
    options_.on_started(plan_.programs[step.program], step.step);
  reports_[step].resize(static_cast<std::size_t>(workers_));
  to_all(Go{step.program, step.step});
}

Expected<std::vector<std::int32_t>> Session::feed(const PlanFeed& feed, ProgramStep step, std::int32_t microbatch,
                                                  const Report* last) {
  const PlanChannel& channel = *feed.channel;
  const Feed message{
      channel.name, step.program, step.step, microbatch,
      options_.feed ? options_.feed(channel.name, step.step, microbatch, last) : std::vector<std::byte>{}};
  const PlanTensor& t = plan_.tensors[channel.tensors[0]];
  if (const auto want = static_cast<std::size_t>(elements(t.shape) * size_of(t.dtype)); message.payload.size() != want)
    return refused_ = invalid(fmt::format("feed '{}', microbatch {} of step {}: got {} bytes, and its tensor has {}",
                                          channel.name, microbatch, step.step, message.payload.size(), want));
  const auto owner = plan_.owners_of(step.program, feed.stage).owner(microbatch);
  std::vector<std::int32_t> takers;
  for (Rank r : plan_.meshes[feed.stage].ranks)
    if (plan_.dp_index(r) == owner) {
      takers.push_back(r);
      send_(r, message);
    }
  return takers;
}

Status check_numbers(const SessionOptions& options) {
  if (!std::isfinite(options.clip) || options.clip < 0)
    return invalid(fmt::format("SessionOptions::clip is {}: expected a finite number, 0 for none", options.clip));
  if (!std::isfinite(options.loss_divisor) || options.loss_divisor <= 0)
    return invalid(
        fmt::format("SessionOptions::loss_divisor is {}: expected a finite number above 0", options.loss_divisor));
  return {};
}

Status Session::begin() {
  TROUPE_TRY(check_numbers(options_));
  TROUPE_ASSIGN(wanted_, find_parameters(plan_, options_.parameters));
  TROUPE_ASSIGN(const ProgramMask readers, decisions_.begin());
  to_all(BeginRun{decisions_.committed(), readers, sums_.exponents(), wanted_});
  keep_sums(readers);
  TROUPE_TRY(decisions_.begin_due());
  check_finished();
  return {};
}

Status Session::handle(Rank from, const FromWorker& message) {
  TROUPE_TRY(refused_);
  if (const auto* m = std::get_if<WorkerFailed>(&message))
    return m->status.in(
        fmt::format("{}{}", name_(from), m->actor.empty() ? "" : fmt::format(", actor '{}'", m->actor)));
  if (const auto* m = std::get_if<EarlyReport>(&message)) return report(from, *m);
  if (const auto* m = std::get_if<FeedTaken>(&message))
    return decisions_.taken({m->program, m->step}, from, m->name, m->microbatch);
  if (const auto* m = std::get_if<Closed>(&message)) return close(from, *m);
  return {};
}

Status Session::report(Rank from, const EarlyReport& m) {
  const ProgramStep step{m.program, m.report.step};
  if (m.report.kind == Report::Kind::saving) {  // no decision depends on it
    if (snapshots_ && decisions_.open(step)) snapshots_->saving(m.report.step, from, m.report);
    return {};
  }
  if (!decisions_.open(step))
    return Status(Code::internal, fmt::format("{} reports '{}' of step {}, which is not open", name_(from),
                                              m.report.name, m.report.step));
  auto& reports = reports_.at(step)[static_cast<std::size_t>(from)].reports;
  reports.push_back(m.report);
  reports.back().place = from;
  // Several places may run the microbatch and report; which report comes first depends on timing.
  return plan_.leads(from) ? decisions_.reported(step, m.report) : Status{};
}

Status Session::close(Rank from, const Closed& m) {
  const ProgramStep step{m.program, m.step};
  TROUPE_TRY(decisions_.check_vote(step, from));
  if (plan_.is_step_program(m.program) && plan_.trains) {
    if (m.step != committed() && gradients_.tells(from))
      return Status(Code::internal,
                    fmt::format("{} votes for step {} while step {} is due", name_(from), m.step, committed()));
    TROUPE_TRY(gradients_.add(from, m.gradients));
  }
  auto& place = reports_.at(step)[static_cast<std::size_t>(from)];
  place.reports.insert(place.reports.end(), m.reports.begin(), m.reports.end());
  for (Report& r : place.reports) r.place = from;
  place.busy_ns = m.busy_ns;
  if (!decisions_.vote(step, from)) return {};
  TROUPE_TRY(complete(step, std::move(reports_.extract(step).mapped())));
  TROUPE_TRY(commit_due());
  check_finished();
  return {};
}

Status Session::commit_due() {
  const auto step = voted_ ? decisions_.due_commit() : std::nullopt;
  if (!step) return {};
  const auto places = *std::exchange(voted_, std::nullopt);
  return commit(*step, places);
}

const SumState* Session::sums_of(std::int64_t version) const {
  if (const auto it = copied_sums_.find(version); it != copied_sums_.end()) return &it->second;
  if (version == committed()) return &sums_.state();
  return version == committed() - 1 && sums_before_ ? &*sums_before_ : nullptr;
}

Status Session::complete(ProgramStep step, std::vector<Closed> places) {
  const bool steps = plan_.is_step_program(step.program);
  if (steps && plan_.trains) {
    voted_ = std::move(places);
    return {};
  }
  if (plan_.programs[step.program] == "digest") {
    TROUPE_ASSIGN(const VersionDigest digest, reductions_.digest(places));
    TROUPE_TRY(diverges(check_digest(plan_, decisions_.last(), digest.not_finite), step.step));
    TROUPE_ASSIGN(parameters_, assemble(plan_, wanted_, places));
    params_hash_ = digest.params_hash;
    return {};
  }
  if (step.program == copy_) {
    newest_copy_ = std::max(newest_copy_, step.step);
    return {};
  }
  tell_closed(step, std::move(places));
  // Without training a commit hands the same parameters on to the next step.
  return steps ? commit(CommitStep{step.step, {}, {}, {}}, nullptr) : Status{};
}

void Session::tell_closed(ProgramStep step, std::vector<Closed> places) {
  std::vector<Report> reports;
  for (auto& place : places) std::move(place.reports.begin(), place.reports.end(), std::back_inserter(reports));
  if (step.program == snapshot_)
    return snapshots_->written(step.step, reports, saved_sums_.extract(step.step).mapped());
  if (!options_.on_closed) return;
  sort(reports);
  options_.on_closed(plan_.programs[step.program], step.step, reports);
}

Status Session::commit(CommitStep c, const StepResult* result) {
  TROUPE_ASSIGN(c.readers, decisions_.commit());
  gradients_.begin_step();
  to_all(c);
  keep_sums(c.readers);
  const Status begun = decisions_.begin_due();
  if (result && options_.on_step) options_.on_step(*result);
  return begun;
}

void Session::keep_sums(ProgramMask readers) {
  if (snapshot_ >= 0 && (readers >> snapshot_ & 1) != 0) {
    saved_sums_[committed()] = sums_.state();
    snapshots_->begun(committed());
  }
  if (copy_ >= 0 && (readers >> copy_ & 1) != 0) {
    copied_sums_[committed()] = sums_.state();
    if (std::ssize(copied_sums_) > 2) copied_sums_.erase(copied_sums_.begin());
  }
}

Status Session::commit(std::int64_t step, const std::vector<Closed>& places) {
  const auto& terms = gradients_.terms();
  const StepVerdict verdict = sums_.judge(terms);
  if (verdict.kind == StepVerdict::Kind::good)
    for (std::size_t i = 0; i < terms.size(); ++i)
      if (terms[i].microbatch != StepTerms::no_microbatch)  // places and session do not have the same exponent
        return Status(Code::internal, name_term(step, terms[i].microbatch, plan_.params[i].name) +
                                          " is said to exceed the range of its exact sum, and the largest does not");
  StepResult result;
  result.step = step;
  TROUPE_ASSIGN(const double loss, reductions_.loss(places));
  result.loss = loss / options_.loss_divisor;
  for (const auto& closed : places) {
    result.busy_ns += closed.busy_ns / workers_;
    std::copy_if(closed.reports.begin(), closed.reports.end(), std::back_inserter(result.reports),
                 [](const Report& r) { return r.kind == Report::Kind::value; });
  }
  sort(result.reports);
  double its_loss = 0;
  if (verdict.kind == StepVerdict::Kind::not_finite) {
    TROUPE_ASSIGN(its_loss, reductions_.loss(places, verdict.microbatch));
  }
  TROUPE_TRY(diverges(check_terms(plan_, step, verdict, sums_.state().void_steps + 1, its_loss), step + 1));
  result.void_step = verdict.kind == StepVerdict::Kind::overflow;
  // Square sums of a void step have no meaning.
  if (!result.void_step) {
    TROUPE_ASSIGN(result.grad_norm, gradients_.norm());
  }
  TROUPE_TRY(diverges(check_step(step, result.loss, result.grad_norm), step + 1));
  result.lr = options_.lr ? options_.lr(step) : plan_.hyper.lr;
  if (!(result.lr >= 0) || result.lr > std::numeric_limits<float>::max())
    return invalid(
        fmt::format("SessionOptions::lr of step {} is {}: expected a float32 number of 0 or more", step, result.lr));
  CommitStep c;
  c.step = step;
  c.commit.lr = result.lr;
  c.commit.update = sums_.state().updates + 1;
  c.commit.grad_scale = options_.clip > 0 && result.grad_norm > options_.clip ? options_.clip / result.grad_norm : 1;
  c.commit.void_step = result.void_step;
  if (plan_.keeps_version()) sums_before_ = sums_.state();
  if (result.void_step) {
    result.void_parameter = plan_.params[verdict.param].name;
    if (verdict.microbatch != StepTerms::no_microbatch) result.void_microbatch = verdict.microbatch;
    sums_.void_step(terms);
  } else {
    sums_.commit(terms);
  }
  c.exponents = sums_.exponents();
  if (options_.on_voted) options_.on_voted(step);
  return commit(std::move(c), &result);
}

Status Session::diverges(Status found, std::int64_t version) {
  if (!found.ok()) useless_ = version;
  return found;
}

void Session::check_finished() {
  if (finished_ || voted_ || !decisions_.idle()) return;
  if (plan_.trains && params_hash_.empty()) return;
  if (holds_) {
    held_ = true;
    return;
  }
  finished_ = true;
  to_all(Stop{});
}

}  // namespace troupe::runtime
