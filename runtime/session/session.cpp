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

SumState sums_at_begin(const SessionOptions& o) { return o.sums.value_or(SumState{o.first_step, {}}); }

/// By (name, program, microbatch).
void sort(std::vector<Report>& reports) {
  std::stable_sort(reports.begin(), reports.end(), [](const Report& a, const Report& b) {
    return std::tie(a.name, a.program, a.microbatch) < std::tie(b.name, b.program, b.microbatch);
  });
}

/// The actors that end the run, at each place where they act.
std::set<std::pair<Rank, std::string>> who_finishes(const Plan& plan) {
  std::set<std::pair<Rank, std::string>> all;
  for (const PlanRole& role : plan.roles)
    for (const PlanActor& a : role.actors)
      for (const Rank r : plan.meshes[role.stage].ranks)
        if (a.finishes() && !plan.owners_of(a.program, role.stage).microbatches(plan.dp_index(r)).empty())
          all.emplace(r, a.name);
  return all;
}

}  // namespace

Session::Session(const Plan& plan, SessionOptions options, SnapshotObserver* snapshots, Send send)
    : plan_(plan), options_(std::move(options)), snapshots_(snapshots), send_(std::move(send)),
      workers_(plan.workers()), snapshot_(snapshots ? plan.program("snapshot") : -1),
      copy_(options_.copy_every > 0 ? plan.program("copy") : -1),
      decisions_(plan, options_.first_step, options_.steps, votes(plan), *this), reductions_(plan), gradients_(plan),
      sums_(plan, sums_at_begin(options_)), unfinished_(who_finishes(plan)) {}

void Session::to_all(const ToWorker& message) {
  for (Rank r = 0; r < workers_; ++r) send_(r, message);
}

Expected<std::vector<std::int32_t>> Session::readers(std::int64_t version, bool last) {
  std::vector<std::int32_t> out;
  if (!plan_.trains()) return out;
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
    options_.on_started(plan_.programs[step.program].name, step.step);
  reports_[step].resize(static_cast<std::size_t>(workers_));
  to_all(Go{step.program, step.step});
}

Expected<std::vector<std::int32_t>> Session::feed(const PlanFeed& feed, ProgramStep step, std::int32_t microbatch,
                                                  const Report* last) {
  const PlanChannel& channel = *feed.channel;
  const Feed message{
      channel.name, channel.program, step.step, microbatch,
      options_.feed ? options_.feed(channel.name, step.step, microbatch, last) : std::vector<std::byte>{}};
  const PlanTensor& t = plan_.tensors[channel.tensors[0]];
  if (const auto want = static_cast<std::size_t>(elements(t.shape) * size_of(t.dtype)); message.payload.size() != want)
    return refused_ = invalid(fmt::format("feed '{}', microbatch {} of step {}: got {} bytes, and its tensor has {}",
                                          channel.name, microbatch, step.step, message.payload.size(), want));
  const auto owner = plan_.owners_of(channel.program, feed.stage).owner(microbatch);
  std::vector<std::int32_t> takers;
  for (Rank r : plan_.meshes[feed.stage].ranks)
    if (plan_.dp_index(r) == owner) {
      takers.push_back(r);
      send_(r, message);
    }
  return takers;
}

namespace {

Status check_numbers(const TrainingOptions& options, const std::string& name) {
  if (!std::isfinite(options.clip) || options.clip < 0)
    return invalid(fmt::format("{}clip is {}: expected a finite number above 0, or 0 for none", name, options.clip));
  if (!std::isfinite(options.loss_divisor) || options.loss_divisor <= 0)
    return invalid(fmt::format("{}loss_divisor is {}: expected a finite number above 0", name, options.loss_divisor));
  return {};
}

}  // namespace

Status check_numbers(const Plan& plan, const SessionOptions& options) {
  TROUPE_TRY(check_numbers(TrainingOptions{options.clip, options.loss_divisor, {}}, "SessionOptions::"));
  std::string names;
  for (const std::int32_t p : plan.training())
    names += (names.empty() ? "'" : ", '") + plan.programs[static_cast<std::size_t>(p)].name + "'";
  if (names.empty()) names = "none";
  for (const auto& [name, own] : options.programs) {
    const std::int32_t p = plan.program(name);
    if (p < 0 || !plan.programs[static_cast<std::size_t>(p)].optimizer)
      return invalid("SessionOptions::programs names '" + name +
                     "', and the plan trains no program of that name; it "
                     "trains " +
                     names);
    TROUPE_TRY(check_numbers(own, "SessionOptions::programs, '" + name + "': "));
  }
  return {};
}

Status Session::begin() {
  TROUPE_TRY(check_numbers(plan_, options_));
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
  const ProgramStep step{plan_.begun_as(m.program), m.report.step};
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
  reports.back().program = m.program;
  // Several places may run the microbatch and report; which report comes first depends on timing.
  if (!plan_.leads(from) || m.report.kind != Report::Kind::value) return {};
  if (options_.on_report) options_.on_report(plan_.programs[m.program].name, reports.back());
  return decisions_.reported({m.program, m.report.step}, m.report);
}

Status Session::close(Rank from, const Closed& m) {
  const ProgramStep step{m.program, m.step};
  TROUPE_TRY(decisions_.check_vote(step, from));
  if (plan_.is_step_program(m.program) && plan_.trains()) {
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
  if (steps) take_finished(places);
  if (steps && plan_.trains()) {
    voted_ = std::move(places);
    return {};
  }
  if (plan_.programs[step.program].name == "digest") {
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

void Session::take_finished(std::vector<Closed>& places) {
  if (unfinished_.empty()) return;
  for (std::size_t p = 0; p < places.size(); ++p)
    std::erase_if(places[p].reports, [&](const Report& r) {
      if (r.kind == Report::Kind::finished) unfinished_.erase({static_cast<Rank>(p), r.name});
      return r.kind == Report::Kind::finished;
    });
  if (!unfinished_.empty()) return;
  ended_ = std::min(options_.steps, committed() + 2);  // where it is held earlier, it goes on from there
  decisions_.end_with(*ended_);
}

void Session::tell_closed(ProgramStep step, std::vector<Closed> places) {
  std::vector<Report> reports;
  for (auto& place : places) std::move(place.reports.begin(), place.reports.end(), std::back_inserter(reports));
  if (step.program == snapshot_)
    return snapshots_->written(step.step, reports, saved_sums_.extract(step.step).mapped());
  if (!options_.on_closed) return;
  sort(reports);
  options_.on_closed(plan_.programs[step.program].name, step.step, reports);
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
  StepResult result;
  result.step = step;
  for (const auto& closed : places) {
    result.busy_ns += closed.busy_ns / workers_;
    std::copy_if(closed.reports.begin(), closed.reports.end(), std::back_inserter(result.reports),
                 [](const Report& r) { return r.kind == Report::Kind::value; });
  }
  sort(result.reports);
  CommitStep c;
  c.step = step;
  c.commits.resize(plan_.training().size());
  for (std::size_t i = 0; i < c.commits.size(); ++i) {
    TROUPE_ASSIGN(ProgramResult of, judge(step, i, places, c.commits[i]));
    if (i == 0) static_cast<ProgramResult&>(result) = std::move(of);
    else result.others.push_back(std::move(of));
  }
  if (plan_.keeps_version()) sums_before_ = sums_.state();
  std::vector<bool> void_steps;
  for (const actors::Commit& of : c.commits) void_steps.push_back(of.void_step);
  sums_.commit(void_steps, gradients_.terms());
  c.exponents = sums_.exponents();
  if (options_.on_voted) options_.on_voted(step);
  return commit(std::move(c), &result);
}

Expected<ProgramResult> Session::judge(std::int64_t step, std::size_t index, const std::vector<Closed>& places,
                                       actors::Commit& commit) {
  const std::int32_t program = plan_.training()[index];
  const PlanProgram& spec = plan_.programs[static_cast<std::size_t>(program)];
  const auto own = options_.programs.find(spec.name);
  const TrainingOptions options = own == options_.programs.end()
                                      ? TrainingOptions{options_.clip, options_.loss_divisor, options_.lr}
                                      : own->second;
  const auto& terms = gradients_.terms();
  const StepVerdict verdict = sums_.judge(index, terms);
  if (verdict.kind == StepVerdict::Kind::good)
    for (std::size_t i = 0; i < terms.size(); ++i)
      if (plan_.params[i].program == program && terms[i].microbatch != StepTerms::no_microbatch)
        return Status(Code::internal,  // places and session do not have the same exponent
                      name_term(step, terms[i].microbatch, plan_.params[i].name) +
                          " is said to exceed the range of its exact sum, and the largest does not");
  ProgramResult result;
  result.program = spec.name;
  TROUPE_ASSIGN(const double loss, reductions_.loss(places, program));
  result.loss = loss / options.loss_divisor;
  double its_loss = 0;
  if (verdict.kind == StepVerdict::Kind::not_finite) {
    TROUPE_ASSIGN(its_loss, reductions_.loss(places, program, verdict.microbatch));
  }
  const UpdateCount count = sums_.count(index);
  const auto diverges_here = [&](const Status& found) {
    return diverges(plan_.has_one_step_program() ? found : found.in("program '" + spec.name + "'"), step + 1);
  };
  TROUPE_TRY(diverges_here(check_terms(plan_, step, verdict, count.void_steps + 1, its_loss)));
  result.void_step = verdict.kind == StepVerdict::Kind::overflow;
  // Square sums of a void step have no meaning.
  if (!result.void_step) {
    TROUPE_ASSIGN(result.grad_norm, gradients_.norm(program));
  }
  TROUPE_TRY(diverges_here(check_step(step, result.loss, result.grad_norm)));
  result.lr = options.lr ? options.lr(step) : spec.optimizer->lr;
  if (!(result.lr >= 0) || result.lr > std::numeric_limits<float>::max())
    return invalid(fmt::format(
        "{}lr of step {} is {}: expected a float32 number of 0 or more",
        own == options_.programs.end() ? "SessionOptions::" : "SessionOptions::programs, '" + spec.name + "': ", step,
        result.lr));
  commit.lr = result.lr;
  commit.update = count.updates + 1;
  commit.grad_scale = options.clip > 0 && result.grad_norm > options.clip ? options.clip / result.grad_norm : 1;
  commit.void_step = result.void_step;
  if (result.void_step) {
    result.void_parameter = plan_.params[static_cast<std::size_t>(verdict.param)].name;
    if (verdict.microbatch != StepTerms::no_microbatch) result.void_microbatch = verdict.microbatch;
  }
  return result;
}

Status Session::diverges(Status found, std::int64_t version) {
  if (!found.ok()) useless_ = version;
  return found;
}

void Session::check_finished() {
  if (finished_ || voted_ || !decisions_.idle()) return;
  if (plan_.trains() && params_hash_.empty()) return;
  if (holds_) {
    held_ = true;
    return;
  }
  finished_ = true;
  to_all(Stop{});
}

}  // namespace troupe::runtime
