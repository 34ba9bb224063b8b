#include "runtime/session/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "devices/base/check.h"
#include "devices/base/text_table.h"
#include "runtime/session/divergence.h"

namespace troupe::runtime {

namespace {

/// The parameters that have sums: none where the plan does not train.
std::vector<PlanParam> summed(const Plan& plan) { return plan.trains ? plan.params : std::vector<PlanParam>{}; }

SumState sums_at_begin(const SessionOptions& o) { return o.sums.value_or(SumState{o.first_step, {}}); }

}  // namespace

Session::Session(const Plan& plan, SessionOptions options, Send send)
    : plan_(plan), options_(std::move(options)), send_(std::move(send)), reductions_(plan), gradients_(plan),
      committed_(options_.first_step), sums_(summed(plan), plan.program_specs[0].microbatches, sums_at_begin(options_)),
      workers_(plan.workers()), snapshot_(plan.program("snapshot")), arena_slots_(plan.snapshot_slots()) {
  options_.steps = std::max(options_.steps, options_.first_step);
  for (std::int32_t p = 0; p < static_cast<std::int32_t>(plan_.programs.size()); ++p) {
    auto& votes = votes_.emplace_back(static_cast<std::size_t>(workers_), false);
    for (const auto& role : plan_.roles) {
      bool closes = false, closes_microbatches = false;
      for (const auto& a : role.actors)
        if (a.program == p && a.closes_step) (a.rate == Rate::microbatch ? closes_microbatches : closes) = true;
      const Schedule schedule = plan_.schedule(p, role.stage);
      std::vector<bool> runs;  // by dp coordinate
      for (std::int64_t d = 0; d < schedule.width(); ++d)
        runs.push_back(closes || (closes_microbatches && schedule.acts(Rate::microbatch, d) > 0));
      for (Rank r : plan_.meshes[role.stage].ranks)
        votes[static_cast<std::size_t>(r)] = runs[static_cast<std::size_t>(plan_.dp_index(r))];
    }
    voters_.push_back(static_cast<std::int32_t>(std::count(votes.begin(), votes.end(), true)));
  }
}

bool Session::votes(std::int32_t program, Rank rank) const { return votes_[program][rank]; }

void Session::to_all(const ToWorker& message) {
  for (Rank r = 0; r < workers_; ++r) send_(r, message);
}

std::vector<std::int32_t> Session::readers_of(std::int64_t version) {
  std::vector<std::int32_t> out;
  if (version < options_.steps) out.push_back(0);
  if (options_.readers) add_named(version, options_.readers(version), out);
  if (version == options_.steps) out.push_back(plan_.program("digest"));
  if (snapshot_ >= 0 && options_.snapshot && options_.snapshot(version)) {
    if (admits(version)) {
      out.push_back(snapshot_);
      saved_sums_[version] = sums_.state();
    } else if (options_.on_checkpoint_skipped) {
      options_.on_checkpoint_skipped(version);
    }
  }
  return out;
}

void Session::add_named(std::int64_t version, const std::vector<std::string>& names, std::vector<std::int32_t>& out) {
  for (const auto& name : names) {
    const auto p = plan_.program(name);
    const char* wrong = nullptr;
    if (p < 0) wrong = "which the plan does not have";
    else if (p == 0 || p == snapshot_ || name == "digest") wrong = "which the session begins by itself";
    else if (std::find(out.begin(), out.end(), p) != out.end()) wrong = "twice";
    if (!wrong) out.push_back(p);
    else if (refused_.ok())
      refused_ = invalid(
          fmt::format("SessionOptions::readers names for version {} the program '{}', {}", version, name, wrong));
  }
}

bool Session::admits(std::int64_t version) const {
  const auto under_way = std::count_if(open_.begin(), open_.end(),
                                       [&](const auto& o) { return o.first.first == snapshot_; });
  return under_way < arena_slots_ || version == options_.steps;
}

ProgramMask Session::mask(const std::vector<std::int32_t>& programs) {
  ProgramMask mask = 0;
  for (auto p : programs) mask |= ProgramMask{1} << p;
  return mask;
}

void Session::start_readers(const std::vector<std::int32_t>& programs, std::int64_t version) {
  for (auto p : programs)
    if (p > 0) {
      if (options_.on_started) options_.on_started(plan_.programs[p], version);
      go(p, version);
    }
}

void Session::go(std::int32_t program, std::int64_t step) {
  Open& open = open_[{program, step}];
  open.places.resize(static_cast<std::size_t>(workers_));
  open.closed.resize(static_cast<std::size_t>(workers_));
  open.missing = voters_[program];
  to_all(Go{program, step});
  for (const auto& role : plan_.roles)
    for (const auto& c : role.channels)
      if (c.kind == PlanChannel::Kind::feed && c.program == program) open.feeds.push_back({&c, role.stage, 0, {}});
  if (!open.feeds.empty()) feed_more(program);
}

Status Session::begin() {
  const auto first = options_.first_step;
  const auto readers = plan_.trains ? readers_of(first) : std::vector<std::int32_t>{0};
  TROUPE_TRY(refused_);
  to_all(BeginRun{first, mask(readers), sums_.exponents()});
  start_readers(readers, first);
  for (std::int64_t s = first; s < std::min(first + 2, options_.steps); ++s) go(0, s);
  check_finished();
  return refused_;
}

void Session::pause_at(std::int64_t version) {
  REQUIRE(version >= earliest_end(), version, earliest_end());
  options_.steps = std::min(options_.steps, version);
}

void Session::feed_more(std::int32_t program) {
  const auto all = plan_.program_specs[program].microbatches;
  const auto first = open_.lower_bound({program, std::numeric_limits<std::int64_t>::min()});
  if (first == open_.end() || first->first.first != program) return;
  for (std::size_t i = 0; i < first->second.feeds.size(); ++i) {
    std::size_t untaken = 0;
    for (auto at = first; at != open_.end() && at->first.first == program; ++at) {
      Fed& f = at->second.feeds[i];
      const auto free = f.channel->after.empty() ? all : std::min(all, f.channel->at_once);
      while (f.sent < free && untaken + f.untaken.size() < feed_window && refused_.ok())
        feed_one(f, at->first.second, nullptr);
      if (f.sent < all) break;
      untaken += f.untaken.size();
    }
  }
}

void Session::feed_one(Fed& f, std::int64_t step, const Report* last) {
  const PlanChannel& channel = *f.channel;
  const auto microbatch = f.sent++;
  const Feed message{channel.name, channel.program, step, microbatch,
                     options_.feed ? options_.feed(channel.name, step, microbatch, last) : std::vector<std::byte>{}};
  const PlanTensor& t = plan_.tensors[channel.tensors[0]];
  if (const auto want = static_cast<std::size_t>(elements(t.shape) * size_of(t.dtype));
      message.payload.size() != want) {
    refused_ = invalid(fmt::format("feed '{}', microbatch {} of step {}: got {} bytes, and its tensor has {}",
                                   channel.name, microbatch, step, message.payload.size(), want));
    return;
  }
  const auto owner = plan_.schedule(channel.program, f.stage).owner(microbatch);
  for (Rank r : plan_.meshes[f.stage].ranks)
    if (plan_.dp_index(r) == owner) {
      ++f.untaken[microbatch];
      send_(r, message);
    }
}

Status Session::handle(Rank from, const FromWorker& message) {
  if (!refused_.ok()) return refused_;
  if (const auto* m = std::get_if<WorkerFailed>(&message))
    return m->status.in(
        fmt::format("worker {}{}", from, m->actor.empty() ? "" : fmt::format(", actor '{}'", m->actor)));
  if (const auto* m = std::get_if<EarlyReport>(&message)) return report(from, *m);
  if (const auto* m = std::get_if<FeedTaken>(&message)) return taken(from, *m);
  if (const auto* m = std::get_if<Closed>(&message)) return close(from, *m);
  return {};
}

Status Session::report(Rank from, const EarlyReport& m) {
  const auto it = open_.find({m.program, m.report.step});
  if (m.report.kind == Report::Kind::saving) {  // no decision depends on it
    if (it != open_.end() && options_.on_saving) options_.on_saving(m.report.step, from, m.report);
    return {};
  }
  if (it == open_.end())
    return Status(Code::internal, fmt::format("worker {} reports '{}' of step {}, which is not open", from,
                                              m.report.name, m.report.step));
  it->second.places[static_cast<std::size_t>(from)].reports.push_back(m.report);
  // Several places may run the microbatch and report; which report comes first depends on timing.
  for (auto& f : it->second.feeds)
    if (plan_.leads(from) && f.channel->after == m.report.name && f.sent >= f.channel->at_once &&
        f.sent - 1 == m.report.microbatch && f.sent < plan_.program_specs[m.program].microbatches)
      feed_one(f, m.report.step, &m.report);
  if (!it->second.feeds.empty()) feed_more(m.program);
  return refused_;
}

Status Session::taken(Rank from, const FeedTaken& m) {
  const auto it = open_.find({m.program, m.step});
  // a place that does not vote may take it after the voters have closed the step
  if (it == open_.end()) return {};
  const std::string what = fmt::format("worker {} has taken microbatch {} of feed '{}'", from, m.microbatch, m.name);
  for (auto& f : it->second.feeds) {
    if (f.channel->name != m.name) continue;
    const auto at = f.untaken.find(m.microbatch);
    if (at == f.untaken.end()) return Status(Code::internal, what + ", which is not on its way there");
    if (--at->second == 0) f.untaken.erase(at);
    feed_more(m.program);
    return refused_;
  }
  return Status(Code::internal, fmt::format("{}, which program {} does not have", what, m.program));
}

Status Session::close(Rank from, const Closed& m) {
  const auto it = open_.find({m.program, m.step});
  const auto rank = static_cast<std::size_t>(from);
  if (it == open_.end() || !votes(m.program, from) || it->second.closed[rank])
    return Status(Code::internal, fmt::format("worker {} closes step {} of program {}, which is not open there", from,
                                              m.step, m.program));
  if (m.program == 0 && plan_.trains) {
    if (m.step != committed_ && gradients_.tells(from))
      return Status(Code::internal,
                    fmt::format("worker {} votes for step {} while step {} is due", from, m.step, committed_));
    TROUPE_TRY(gradients_.add(from, m.gradients));
  }
  auto& place = it->second.places[rank];
  place.reports.insert(place.reports.end(), m.reports.begin(), m.reports.end());
  place.busy_ns = m.busy_ns;
  it->second.closed[rank] = true;
  if (--it->second.missing > 0) return {};
  return complete({m.program, m.step}, std::move(open_.extract(it).mapped()));
}

Status Session::complete(Key key, Open open) {
  const auto [program, step] = key;
  if (program == 0 && plan_.trains) {
    TROUPE_TRY(commit(step, open));
  } else if (plan_.programs[program] == "digest") {
    TROUPE_ASSIGN(const VersionDigest digest, reductions_.digest(open.places));
    TROUPE_TRY(diverges(check_digest(plan_, options_.steps, digest.not_finite), step));
    params_hash_ = digest.params_hash;
  } else if (program == snapshot_ ? bool(options_.on_shards) : bool(options_.on_closed)) {
    std::vector<Report> reports;
    for (auto& place : open.places)
      for (auto& r : place.reports) reports.push_back(std::move(r));
    if (program == snapshot_) options_.on_shards(step, reports, saved_sums_.extract(step).mapped());
    else close_program(program, step, std::move(reports));
  }
  if (program == 0 && !plan_.trains) {
    // Without training a commit hands the same parameters on to the next step.
    ++committed_;
    to_all(CommitStep{step, step + 1 < options_.steps ? ProgramMask{1} : ProgramMask{0}, {}, {}});
    if (step + 2 < options_.steps) go(0, step + 2);
  }
  check_finished();
  return refused_;
}

void Session::close_program(std::int32_t program, std::int64_t step, std::vector<Report> reports) {
  std::stable_sort(reports.begin(), reports.end(), [](const Report& a, const Report& b) {
    return std::tie(a.name, a.microbatch) < std::tie(b.name, b.microbatch);
  });
  options_.on_closed(plan_.programs[program], step, reports);
}

Status Session::commit(std::int64_t step, const Open& vote) {
  const auto& terms = gradients_.terms();
  const StepVerdict verdict = sums_.judge(terms);
  if (verdict.kind == StepVerdict::Kind::good)
    for (std::size_t i = 0; i < terms.size(); ++i)
      if (terms[i].microbatch != StepTerms::no_microbatch)  // places and session do not have the same exponent
        return Status(Code::internal, name_term(step, terms[i].microbatch, plan_.params[i].name) +
                                          " is said to exceed the range of its exact sum, and the largest does not");
  StepResult result;
  result.step = step;
  TROUPE_ASSIGN(const double loss, reductions_.loss(vote.places));
  result.loss = loss / options_.loss_divisor;
  for (const auto& closed : vote.places) result.busy_ns += closed.busy_ns / workers_;
  double its_loss = 0;
  if (verdict.kind == StepVerdict::Kind::not_finite) {
    TROUPE_ASSIGN(its_loss, reductions_.loss(vote.places, verdict.microbatch));
  }
  TROUPE_TRY(diverges(check_terms(plan_, step, verdict, sums_.state().void_steps + 1, its_loss), step + 1));
  result.void_step = verdict.kind == StepVerdict::Kind::overflow;
  // Square sums of a void step have no meaning.
  if (!result.void_step) {
    TROUPE_ASSIGN(result.grad_norm, gradients_.norm());
  }
  TROUPE_TRY(diverges(check_step(step, result.loss, result.grad_norm), step + 1));
  result.lr = options_.lr ? options_.lr(step) : plan_.hyper.lr;
  CommitStep c;
  c.step = step;
  c.commit.lr = result.lr;
  c.commit.update = sums_.state().updates + 1;
  c.commit.grad_scale = options_.clip > 0 && result.grad_norm > options_.clip ? options_.clip / result.grad_norm : 1;
  c.commit.void_step = result.void_step;
  if (result.void_step) {
    result.void_parameter = plan_.params[verdict.param].name;
    if (verdict.microbatch != StepTerms::no_microbatch) result.void_microbatch = verdict.microbatch;
    sums_.void_step(terms);
  } else {
    sums_.commit(terms);
  }
  c.exponents = sums_.exponents();
  const auto readers = readers_of(step + 1);
  TROUPE_TRY(refused_);
  ++committed_;
  gradients_.begin_step();
  c.readers = mask(readers);
  to_all(c);
  start_readers(readers, step + 1);
  if (step + 2 < options_.steps) go(0, step + 2);
  if (options_.on_step) options_.on_step(result);
  return {};
}

Status Session::diverges(Status found, std::int64_t version) {
  if (!found.ok()) useless_ = version;
  return found;
}

bool Session::readers_left() const {
  return useless_ && std::any_of(open_.begin(), open_.end(), [this](const auto& o) {
           const auto [program, version] = o.first;
           return program > 0 && version < *useless_;
         });
}

void Session::check_finished() {
  if (finished_ || !open_.empty()) return;
  if (plan_.trains && params_hash_.empty()) return;
  finished_ = true;
  to_all(Stop{});
}

}  // namespace troupe::runtime
