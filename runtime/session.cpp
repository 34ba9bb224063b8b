#include "runtime/session.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include "actors/optimizer.h"
#include "devices/base/check.h"
#include "devices/base/philox.h"
#include "placement/tree.h"

namespace troupe::runtime {

namespace {

std::string hex(std::uint64_t v) {
  static const char* digits = "0123456789abcdef";
  std::string out(16, '0');
  for (int i = 15; i >= 0; --i, v >>= 4) out[i] = digits[v & 15];
  return out;
}

std::uint64_t mix(std::uint64_t h, std::uint64_t v) {
  h ^= v + 0x9E3779B97F4A7C15ull + (h << 6) + (h >> 2);
  h = (h ^ (h >> 30)) * 0xBF58476D1CE4E5B9ull;
  h = (h ^ (h >> 27)) * 0x94D049BB133111EBull;
  return h ^ (h >> 31);
}

/// Where a plan does not train, no parameter has sums.
std::vector<PlanParam> summed(const Plan& plan) { return plan.trains ? plan.params : std::vector<PlanParam>{}; }

SumState sums_at_begin(const SessionOptions& o) { return o.sums.value_or(SumState{o.first_step, {}}); }

/// "step 12: microbatch 3: a gradient term of 'layer0.q'"; without the microbatch where no place has told it.
std::string named_term(std::int64_t step, std::int32_t microbatch, const std::string& parameter) {
  const bool known = microbatch != StepTerms::no_microbatch;
  return "step " + std::to_string(step) + (known ? ": microbatch " + std::to_string(microbatch) : "") +
         ": a gradient term of '" + parameter + "'";
}

/// What a place says of terms: [magnitude, an f32 widened; 0 or 1 + the index of a microbatch].
bool is_peak(const std::vector<double>& values, std::int64_t microbatches) {
  constexpr double most = std::numeric_limits<float>::max();
  return values.size() == 2 && !(values[0] < 0) && (!std::isfinite(values[0]) || values[0] <= most) && values[1] >= 0 &&
         values[1] <= static_cast<double>(microbatches);
}

}  // namespace

Session::Session(const Plan& plan, SessionOptions options, Send send)
    : plan_(plan), options_(std::move(options)), send_(std::move(send)), committed_(options_.first_step),
      sums_(summed(plan), plan.program_specs[0].microbatches, sums_at_begin(options_)),
      snapshot_(plan.program("snapshot")), arena_slots_(plan.snapshot_slots()) {
  for (std::size_t p = 0; p < plan_.programs.size(); ++p) {
    votes_.push_back(std::vector<bool>(plan_.workers(), false));
    for (Rank r = 0; r < plan_.workers(); ++r) {
      const auto stage = plan_.stage_of(r);
      const bool runs = !plan_.microbatches(static_cast<std::int32_t>(p), stage, plan_.dp_index(r)).empty();
      for (const auto& a : plan_.roles[stage].actors)
        if (a.program == static_cast<std::int32_t>(p) && a.closes_step && (runs || a.rate != Rate::microbatch)) votes_[p][r] = true;
    }
  }
}

bool Session::votes(std::int32_t program, Rank rank) const { return votes_[program][rank]; }

void Session::to_all(const ToWorker& message) {
  for (Rank r = 0; r < plan_.workers(); ++r) send_(r, message);
}

std::vector<std::int32_t> Session::readers_of(std::int64_t version) {
  std::vector<std::int32_t> out;
  if (version < options_.steps) out.push_back(0);
  if (options_.readers)
    for (const auto& name : options_.readers(version))
      if (const auto p = plan_.program(name); p > 0) out.push_back(p);
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

bool Session::admits(std::int64_t version) const {
  const auto under_way = std::count_if(open_.begin(), open_.end(), [&](const auto& o) { return o.first.first == snapshot_; });
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
  to_all(Go{program, step});
  for_each_feed(program, [&](const PlanChannel& c, std::int32_t stage) {
    const auto all = static_cast<std::int32_t>(plan_.program_specs[program].microbatches);
    const auto now = c.after.empty() ? all : static_cast<std::int32_t>(std::min<std::int64_t>(all, c.at_once));
    for (std::int32_t m = 0; m < now; ++m) feed(c, stage, step, m, nullptr);
    if (!c.after.empty()) open.fed[&c] = now;
  });
}

void Session::begin() {
  const auto first = options_.first_step;
  const auto readers = plan_.trains ? readers_of(first) : std::vector<std::int32_t>{0};
  to_all(BeginRun{first, mask(readers), sums_.exponents()});
  start_readers(readers, first);
  for (std::int64_t s = first; s < std::min(first + 2, options_.steps); ++s) go(0, s);
  check_finished();
}

void Session::pause_at(std::int64_t version) {
  REQUIRE(version >= earliest_end(), version, earliest_end());
  options_.steps = std::min(options_.steps, version);
}

template <class F>
void Session::for_each_feed(std::int32_t program, F f) const {
  for (const auto& role : plan_.roles)
    for (const auto& c : role.channels)
      if (c.kind == PlanChannel::Kind::feed && c.program == program) f(c, role.stage);
}

void Session::feed(const PlanChannel& channel, std::int32_t stage, std::int64_t step, std::int32_t microbatch, const Report* last) {
  const Feed message{channel.name, channel.program, step, microbatch,
                     options_.feed ? options_.feed(channel.name, step, microbatch, last) : std::vector<std::byte>{}};
  const PlanTensor& t = plan_.tensors[channel.tensors[0]];
  if (const auto want = static_cast<std::size_t>(elements(t.shape) * size_of(t.dtype)); message.payload.size() != want) {
    fed_ = invalid("feed '" + channel.name + "', microbatch " + std::to_string(microbatch) + " of step " + std::to_string(step) +
                   ": got " + std::to_string(message.payload.size()) + " bytes, and its tensor has " + std::to_string(want));
    return;
  }
  const auto owner = plan_.owner(channel.program, stage, microbatch);
  for (Rank r : plan_.meshes[stage].ranks)
    if (plan_.dp_index(r) == owner) send_(r, message);
}

Status Session::handle(Rank from, const FromWorker& message) {
  if (!fed_.ok()) return fed_;
  if (const auto* m = std::get_if<WorkerFailed>(&message))
    return m->status.in("worker " + std::to_string(from) + (m->actor.empty() ? "" : ", actor '" + m->actor + "'"));
  if (const auto* m = std::get_if<EarlyReport>(&message)) return report(from, *m);
  if (const auto* m = std::get_if<Closed>(&message)) return close(from, *m);
  return {};
}

Status Session::report(Rank from, const EarlyReport& m) {
  const auto it = open_.find({m.program, m.report.step});
  if (m.report.kind == Report::Kind::saving) {   // news, which nothing waits for
    if (it != open_.end() && options_.on_saving) options_.on_saving(m.report.step, from, m.report);
    return {};
  }
  if (it == open_.end())
    return Status(Code::internal, "worker " + std::to_string(from) + " reports '" + m.report.name + "' of step " +
                                      std::to_string(m.report.step) + ", which is not open");
  it->second.places[from].reports.push_back(m.report);
  for_each_feed(m.program, [&](const PlanChannel& c, std::int32_t stage) {
    if (c.after != m.report.name) return;
    auto& next = it->second.fed[&c];
    if (next != m.report.microbatch + 1 || next == plan_.program_specs[m.program].microbatches) return;
    feed(c, stage, m.report.step, next++, &m.report);
  });
  return fed_;
}

Status Session::close(Rank from, const Closed& m) {
  const auto it = open_.find({m.program, m.step});
  if (it == open_.end() || !votes(m.program, from) || !it->second.closed.insert(from).second)
    return Status(Code::internal, "worker " + std::to_string(from) + " closes step " + std::to_string(m.step) + " of program " +
                                      std::to_string(m.program) + ", which is not open there");
  auto& place = it->second.places[from];
  place.reports.insert(place.reports.end(), m.reports.begin(), m.reports.end());
  place.busy_ns = m.busy_ns;
  for (Rank r = 0; r < plan_.workers(); ++r)
    if (votes(m.program, r) && !it->second.closed.count(r)) return {};
  Open open = std::move(it->second);
  open_.erase(it);
  return complete({m.program, m.step}, std::move(open));
}

Status Session::complete(Key key, Open open) {
  const auto [program, step] = key;
  if (program == 0 && plan_.trains) {
    TROUPE_TRY(commit(step, open));
  } else if (plan_.programs[program] == "digest") {
    TROUPE_TRY(digest(open));
  } else if (program == snapshot_ ? bool(options_.on_shards) : bool(options_.on_closed)) {
    std::vector<Report> reports;
    for (auto& [rank, place] : open.places)
      for (auto& r : place.reports) reports.push_back(std::move(r));
    if (program == snapshot_) options_.on_shards(step, reports, saved_sums_.extract(step).mapped());
    else close_program(program, step, std::move(reports));
  }
  if (program == 0 && !plan_.trains) {
    // Without training a commit hands the same parameters on to the next step.
    to_all(CommitStep{step, step + 1 < options_.steps ? ProgramMask{1} : ProgramMask{0}, {}, {}});
    if (step + 2 < options_.steps) go(0, step + 2);
  }
  check_finished();
  return fed_;
}

void Session::close_program(std::int32_t program, std::int64_t step, std::vector<Report> reports) {
  std::stable_sort(reports.begin(), reports.end(), [](const Report& a, const Report& b) {
    return std::tie(a.name, a.microbatch) < std::tie(b.name, b.microbatch);
  });
  options_.on_closed(plan_.programs[program], step, reports);
}

Status Session::commit(std::int64_t step, const Open& vote) {
  if (step != committed_)
    return Status(Code::internal, "step " + std::to_string(step) + " is voted while step " + std::to_string(committed_) + " is due");
  TROUPE_ASSIGN(const auto terms, terms_of(vote));
  const StepVerdict verdict = sums_.judge(terms);
  if (verdict.kind == StepVerdict::Kind::good)
    for (std::size_t i = 0; i < terms.size(); ++i)
      if (terms[i].microbatch != StepTerms::no_microbatch)   // places and session do not have the same exponent
        return Status(Code::internal, named_term(step, terms[i].microbatch, plan_.params[i].name) +
                                          " is said to exceed the range of its exact sum, and the largest does not");
  StepResult result;
  result.step = step;
  result.loss = loss_of(vote);
  for (const auto& [rank, closed] : vote.places) result.busy_ns += closed.busy_ns / plan_.workers();
  if (verdict.kind == StepVerdict::Kind::not_finite)
    return diverge(named_term(step, verdict.microbatch, plan_.params[verdict.param].name) + " is not finite" +
                   (std::isfinite(loss_of(vote, verdict.microbatch)) ? "" : ", nor is the loss of that microbatch"));
  result.void_step = verdict.kind == StepVerdict::Kind::overflow;
  if (!result.void_step) { TROUPE_ASSIGN(result.grad_norm, norm_of(vote)); }   // square sums of a void step mean nothing
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm))
    return diverge("step " + std::to_string(step) + ": loss " + std::to_string(result.loss) + ", gradient norm " +
                   std::to_string(result.grad_norm));
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
    if (sums_.state().void_steps + 1 >= void_steps_max)
      return diverge(named_term(step, verdict.microbatch, result.void_parameter) +
                     " exceeds the range of its exact sum; " + std::to_string(void_steps_max) + " steps in a row are void");
    sums_.void_step(terms);
  } else {
    sums_.commit(terms);
  }
  c.exponents = sums_.exponents();
  ++committed_;
  const auto readers = readers_of(step + 1);
  c.readers = mask(readers);
  to_all(c);
  start_readers(readers, step + 1);
  if (step + 2 < options_.steps) go(0, step + 2);
  if (options_.on_step) options_.on_step(result);
  return {};
}

double Session::loss_of(const Open& vote, std::optional<std::int32_t> only) const {
  std::map<std::int32_t, double> losses;
  for (const auto& [rank, closed] : vote.places)
    for (const auto& r : closed.reports)
      if (r.kind == Report::Kind::loss && (!only || r.microbatch == *only))
        for (double value : r.values) losses[r.microbatch] += value;
  double loss = 0;
  for (const auto& [microbatch, value] : losses) loss += value;
  return loss / options_.loss_divisor;
}

Expected<double> Session::norm_of(const Open& vote) const {
  std::map<std::string, std::vector<double>> norms;
  for (const auto& [rank, closed] : vote.places)
    for (const auto& r : closed.reports)
      if (r.kind == Report::Kind::norm) {
        auto& all = norms[r.name];
        all.insert(all.end(), r.values.begin(), r.values.end());
      }
  double squares = 0;   // tensors in name order
  std::vector<const PlanParam*> params;
  for (const auto& p : plan_.params) params.push_back(&p);
  std::sort(params.begin(), params.end(), [](const auto* a, const auto* b) { return a->name < b->name; });
  for (const auto* p : params) {
    const auto it = norms.find(p->name);
    if (it == norms.end()) continue;   // not trained
    const Shape& shape = plan_.tensors[p->tensor].shape;
    TROUPE_ASSIGN(const double sum, actors::combine_row_sums(p->name, it->second, shape.empty() ? 1 : shape[0]));
    squares += sum;
  }
  return std::sqrt(squares);
}

Expected<std::vector<StepTerms>> Session::terms_of(const Open& vote) const {
  std::map<std::string_view, std::size_t> index;
  for (std::size_t i = 0; i < plan_.params.size(); ++i) index[plan_.params[i].name] = i;
  std::vector<StepTerms> terms(plan_.params.size());
  for (const auto& [rank, closed] : vote.places)
    for (const auto& r : closed.reports) {
      if (r.kind != Report::Kind::peak) continue;
      const auto at = index.find(r.name);
      if (at == index.end() || !is_peak(r.values, plan_.program_specs[0].microbatches))
        return Status(Code::internal,
                      "worker " + std::to_string(rank) + " reports gradient terms of '" + r.name + "' that cannot be");
      const auto first = static_cast<std::int32_t>(r.values[1]);
      terms[at->second].add({static_cast<float>(r.values[0]), first == 0 ? StepTerms::no_microbatch : first - 1});
    }
  return terms;
}

Status Session::diverge(const std::string& why) {
  diverged_ = true;
  return invalid(why + ": training has diverged");
}

Status Session::digest(const Open& vote) {
  // name -> extent -> words. Replicas of an extent must agree; extents add up.
  std::map<std::string, std::map<std::string, std::pair<std::vector<double>, Rank>>> words;
  std::set<std::string> ruined;
  for (const auto& [rank, closed] : vote.places)
    for (const auto& r : closed.reports) {
      if (r.kind != Report::Kind::digest || r.values.size() != 3) continue;
      const auto bar = r.name.rfind('|');
      if (r.values[2] != 1) ruined.insert(r.name.substr(0, bar));
      auto [it, fresh] = words[r.name.substr(0, bar)].try_emplace(r.name.substr(bar + 1), r.values, rank);
      for (std::size_t i = 0; !fresh && i < r.values.size(); ++i)
        if (std::bit_cast<std::uint64_t>(r.values[i]) != std::bit_cast<std::uint64_t>(it->second.first[i]))
          return Status(Code::internal, "replicas of parameter '" + r.name + "' differ between ranks " +
                                            std::to_string(it->second.second) + " and " + std::to_string(rank));
    }
  // The last update has no step after it whose loss would tell.
  for (const auto& p : plan_.params)
    if (ruined.count(p.name)) return diverge("parameter '" + p.name + "' is not finite after step " + std::to_string(options_.steps));
  std::uint64_t a = 0x6a09e667f3bcc908ull, b = 0xbb67ae8584caa73bull;
  for (const auto& [name, extents] : words) {
    std::uint64_t x = 0, y = 0;
    for (const auto& [extent, value] : extents) {
      x += std::bit_cast<std::uint64_t>(value.first.at(0));
      y += std::bit_cast<std::uint64_t>(value.first.at(1));
    }
    a = mix(mix(a, name_hash(name)), x);
    b = mix(mix(b, name_hash(name)), y);
  }
  params_hash_ = hex(a) + hex(b);
  digested_ = true;
  return {};
}

void Session::check_finished() {
  if (finished_ || !open_.empty()) return;
  if (plan_.trains && !digested_) return;
  finished_ = true;
  to_all(Stop{});
}

std::string Session::waits_for() const {
  std::string text;
  for (const auto& [key, open] : open_) {
    std::string ranks;
    for (Rank r = 0; r < plan_.workers(); ++r)
      if (votes(key.first, r) && !open.closed.count(r)) ranks += (ranks.empty() ? "" : ", ") + std::to_string(r);
    text += "program '" + plan_.programs[key.first] + "', step " + std::to_string(key.second) + ": not closed by rank " + ranks + "\n";
    for (const auto& [channel, next] : open.fed)
      if (next < plan_.program_specs[key.first].microbatches)
        text += "  feed '" + channel->name + "' waits for report '" + channel->after + "' of microbatch " + std::to_string(next - 1) + "\n";
  }
  return text;
}

}  // namespace troupe::runtime
