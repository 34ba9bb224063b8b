#include "runtime/elastic/coordinator.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "devices/base/check.h"
#include "devices/base/log.h"
#include "runtime/elastic/stall_text.h"

namespace troupe::runtime {

Coordinator::Coordinator(const Plan& plan, CoordinatorOptions options, JobCheckpoints* checkpoints,
                         CoordinatorSink& sink)
    : plan_(plan), options_(std::move(options)), checkpoints_(checkpoints), sink_(sink),
      session_(plan, session_options(), checkpoints, [this](Rank to, const ToWorker& message) {
        sink_.send(std::span(&options_.places[to], 1), fence_.generation(), message);
      }) {
  const auto ranks = static_cast<std::size_t>(plan.workers());
  if (options_.places.empty())
    for (Rank r = 0; r < plan.workers(); ++r) options_.places.push_back(PlaceId{r});
  REQUIRE(options_.places.size() == ranks, options_.places.size(), ranks);
  REQUIRE(std::set(options_.places.begin(), options_.places.end()).size() == ranks, ranks);
  result_.places.resize(ranks);
}

Rank Coordinator::rank_of(PlaceId place) const {
  const auto found = std::find(options_.places.begin(), options_.places.end(), place);
  REQUIRE(found != options_.places.end(), static_cast<std::int32_t>(place));
  return static_cast<Rank>(found - options_.places.begin());
}

SessionOptions Coordinator::session_options() {
  SessionOptions s = options_.session;
  s.on_step = [this, told = std::move(s.on_step)](const StepResult& step) {
    result_.void_steps += step.void_step ? 1 : 0;
    if (told) told(step);
  };
  return s;
}

// ---- events ----------------------------------------------------------------------------------------

void Coordinator::heard(PlaceId from, const ControlFrame& frame, std::int64_t now_ns) {
  if (over_ || !fence_.admits(frame.of)) return;
  const Rank rank = rank_of(from);
  auto message = decode_from_worker(frame.message);
  if (!message.ok()) return end(message.status().in(fmt::format("worker {}", rank)), exit_worker);
  if (auto* m = std::get_if<Explained>(&*message)) {
    if (explain_until_ns_) explanations_[rank] = std::move(m->text);  // else of a question that progress has answered
    return;
  }
  progressed(now_ns);
  if (auto* m = std::get_if<WorkerAddress>(&*message)) take_address(rank, *m);
  else if (auto* m = std::get_if<Ready>(&*message)) take_ready(rank, *m);
  else if (auto* m = std::get_if<Spans>(&*message)) take_spans(rank, *m);
  else if (auto* m = std::get_if<Stopped>(&*message)) take_stopped(rank, *m);
  else decide(from, *message, now_ns);
}

void Coordinator::down(PlaceId place, const Status& how) {
  if (!over_ && !stopped_.count(rank_of(place))) end(sink_.with_last_log_lines(place, how), exit_worker);
}

void Coordinator::poll_checkpoints() {
  if (over_) return;
  if (diverged_ && !session_.readers_left()) return end({}, exit_diverged);
  if (!checkpoints_) return;
  if (const Status s = checkpoints_->poll(); !s.ok())
    end(pause_.unsaved(s), checkpoints_->diverged() ? exit_diverged : exit_checkpoint);
}

void Coordinator::turn(std::int64_t now_ns) {
  poll_checkpoints();
  if (over_) return;
  if (suspicion_ && now_ns >= suspicion_->until_ns)
    return end(sink_.with_last_log_lines(suspicion_->place, suspicion_->status), exit_worker);
  if (static_cast<Rank>(stopped_.size()) == plan_.workers()) return end(pause_.status(), pause_.code());
  if (explain_until_ns_ &&
      (now_ns >= *explain_until_ns_ || static_cast<Rank>(explanations_.size()) == plan_.workers())) {
    const std::string text = stall_text(options_.stall_s, plan_.workers(), session_.waits_for(), explanations_);
    return end(Status(Code::unavailable, text), exit_stalled);
  }
  if (!explain_until_ns_ && now_ns >= wakes_ns()) {
    explain_until_ns_ = now_ns + explain_wait_ns;
    log_debug(fmt::format("no progress for {} s: the workers are asked what they wait for", options_.stall_s));
    send_all(ExplainAll{});
  }
}

std::int64_t Coordinator::wakes_ns() const {
  if (over_) return std::numeric_limits<std::int64_t>::max();
  const std::int64_t stall = explain_until_ns_.value_or(last_heard_ns_ + options_.stall_s * 1'000'000'000ll);
  return suspicion_ ? std::min(stall, suspicion_->until_ns) : stall;
}

void Coordinator::progressed(std::int64_t now_ns) {
  last_heard_ns_ = now_ns;
  explain_until_ns_.reset();
  explanations_.clear();
}

// ---- messages --------------------------------------------------------------------------------------

void Coordinator::take_address(Rank from, WorkerAddress& address) {
  const bool fresh = addresses_.addresses.emplace(from, std::move(address.blob)).second;
  if (!fresh || static_cast<Rank>(addresses_.addresses.size()) != plan_.workers()) return;
  log_debug("all workers have an address and connect");
  send_all(addresses_);
}

void Coordinator::take_ready(Rank from, const Ready& ready) {
  PlaceResult& place = result_.places[from];
  place.restored_bytes = ready.restored_bytes;
  place.restore_s = ready.restore_s;
  if (!ready_.insert(from).second || !all_ready()) return;
  log_debug(fmt::format("all workers are ready: version {} begins", session_.committed()));
  if (options_.on_ready) options_.on_ready();
  if (Status s = session_.begin(); !s.ok()) end(std::move(s), exit_worker);
}

void Coordinator::take_spans(Rank from, Spans& spans) {
  PlaceResult& place = result_.places[from];
  place.dropped_spans += spans.dropped;
  place.spans.insert(place.spans.end(), std::make_move_iterator(spans.spans.begin()),
                     std::make_move_iterator(spans.spans.end()));
}

void Coordinator::take_stopped(Rank from, const Stopped& stopped) {
  PlaceResult& place = result_.places[from];
  place.peak_bytes = stopped.peak_bytes;
  place.file_bytes = stopped.file_bytes;
  place.shared_bytes = stopped.shared_bytes;
  place.sent_bytes = stopped.sent_bytes;
  place.received_bytes = stopped.received_bytes;
  if (!session_.finished())
    return end(Status(Code::internal, fmt::format("worker {} has stopped before it was told to", from)), exit_worker);
  stopped_.insert(from);
}

void Coordinator::decide(PlaceId from, const FromWorker& message, std::int64_t now_ns) {
  // After the end, peers that close their connections are no failures.
  if (session_.finished() || (suspicion_ && !is_saved(message))) return;
  const Status s = session_.handle(rank_of(from), message);
  if (s.ok()) return;
  if (session_.diverged() && !diverged_) {
    // Versions before are not known to be bad: poll_checkpoints() waits for their saves and evaluations under way.
    diverged_ = s;
    log_debug(s.message() + "; the job ends when the programs that read versions before have closed");
  } else if (s.code() == Code::unavailable) {
    suspicion_ = {from, s, now_ns + culprit_wait_ns};
  } else {
    end(sink_.with_last_log_lines(from, s), s.code() == Code::damaged ? exit_checkpoint : exit_worker);
  }
}

bool Coordinator::is_saved(const FromWorker& message) const {
  const auto* closed = std::get_if<Closed>(&message);
  return closed && closed->program == plan_.program("snapshot");
}

// ---- the end ---------------------------------------------------------------------------------------

void Coordinator::interrupt(const std::string& why, int code, std::int64_t now_ns) {
  const std::int64_t version = session_.earliest_end();
  const bool can_pause = checkpoints_ && all_ready();
  if (pause_.asked() || !can_pause || diverged_) return end(Status(Code::unavailable, why), code);
  pause_.begin(why, code, version, options_.session.steps, now_ns);
  if (pause_.begun()) checkpoints_->end_with(version), session_.pause_at(version);
  if (options_.on_pause) options_.on_pause(why, version);
}

void Coordinator::end(Status status, int code) {
  if (over_) return;
  over_ = true;
  if (diverged_) {
    if (!status.ok() && code != exit_diverged)
      log_warn("training has diverged, and the wait for what reads steps before ends early: " + status.message());
    status = *diverged_, code = exit_diverged;
  }
  result_.status = std::move(status);
  result_.exit_code = result_.status.ok() ? exit_ok : code;
}

void Coordinator::finish_checkpoints() {
  if (!checkpoints_) return;
  const Status s = checkpoints_->finish();
  const int code = checkpoints_->diverged() ? exit_diverged : exit_checkpoint;
  if (s.ok() || (!result_.status.ok() && result_.exit_code != exit_interrupted && result_.exit_code != pause_.code()))
    return;
  // A job that a signal has paused says exit_interrupted where its last checkpoint is saved, or a second signal has
  // ended it before; never where a save has failed.
  if (result_.status.ok()) result_.status = s, result_.exit_code = code;
  else if (pause_.begun()) result_.status = pause_.unsaved(s), result_.exit_code = code;
}

JobResult Coordinator::take_result() {
  result_.params_hash = session_.params_hash();
  result_.committed_steps = session_.committed();
  result_.late_messages = fence_.dropped();
  return std::move(result_);
}

}  // namespace troupe::runtime
