#include "actors/actor_core.h"

#include <fmt/format.h>

#include <algorithm>

#include "devices/base/check.h"
#include "devices/base/philox.h"

namespace troupe::actors {

ActorCore::ActorCore(ActorSpec spec, Outbox& outbox, TraceSink* trace)
    : spec_(std::move(spec)), ports_(spec_.in, spec_.out), outbox_(outbox), trace_(trace) {}

void ActorCore::begin(std::int64_t step, ProgramMask readers) {
  begun_ = true;
  for (std::size_t o = 0; o < spec_.out.size(); ++o) {
    if (!spec_.initial[o]) continue;
    Running first;
    first.initial = true;
    first.context.step = step - spec_.out_step[o];
    first.context.act.out.resize(spec_.out.size());
    first.context.act.out[o] = {ports_.take_slot(static_cast<int>(o), spec_.first_slot), true, true};
    // A version of the parameters goes to the programs that read it; a token of free memory to every reader.
    first.context.act.in.push_back({Token{.readers = spec_.out_step[o] ? readers : every_program}, false});
    first.sequence.assign(spec_.out.size(), 0);
    publish(first, o, true);
    publish(first, o, false);
  }
  pump();
}

void ActorCore::arrive(std::int32_t port, const Token& token) {
  ports_.arrive(port, token);
  pump();
}

void ActorCore::ack(std::int32_t port, std::int32_t slot) {
  ports_.ack(port, slot);
  pump();
}

void ActorCore::pump() {
  while (!waiting_ && !failed_ && begun_ && ports_.ready()) {
    Running running;
    ActContext& c = running.context;
    c.act = ports_.begin();
    c.program = spec_.program;
    const auto per_step = std::max<std::size_t>(1, spec_.microbatches.size());
    c.local = static_cast<std::int32_t>(c.act.number % per_step);
    c.microbatch = spec_.microbatches.empty() ? -1 : spec_.microbatches[c.local];
    if (!spec_.turns.empty())
      c.turn = static_cast<std::int64_t>(c.act.number / per_step) * spec_.turns_per_step + spec_.turns[c.local];
    c.step = -1;
    for (std::size_t i = 0; i < c.act.in.size(); ++i) {
      const Token& token = c.act.in[i].token;
      if (!c.act.in[i].read || spec_.in[i].any_step) continue;
      if (c.step < 0) c.step = token.step;
      ASSERT(c.step == token.step, spec_.name, spec_.in[i].name, c.step, token.step);
      if (token.microbatch >= 0 && c.microbatch >= 0 && !spec_.rounds)
        ASSERT(token.microbatch + spec_.in[i].lag == c.microbatch, spec_.name, spec_.in[i].name, token.microbatch,
               spec_.in[i].lag, c.microbatch);
    }
    running.sequence.assign(spec_.out.size(), 0);
    const auto number = c.act.number;
    waiting_ = true;
    ActContext copy = c;
    running_.emplace(number, std::move(running));
    outbox_.submit(std::move(copy));
  }
}

void ActorCore::publish(Running& running, std::size_t port, bool same_stream) {
  const auto& readers = spec_.readers[port];
  ProgramMask mask = every_program;
  for (const auto& in : running.context.act.in) mask &= in.token.readers;
  // The commit says which programs read a version of the parameters; within a program every reader gets every token.
  const bool own = spec_.out_step[port] == 0;
  const auto& out = running.context.act.out[port];
  auto reads = [&](const Reader& r) {
    return !out.unread && ((mask >> r.program & 1) != 0 || (own && r.program == spec_.program));
  };
  const bool early = std::any_of(readers.begin(), readers.end(),
                                 [&](const Reader& r) { return r.same_stream && reads(r); });
  // The first of the two calls that has readers, or else the second, publishes the slot for all of them.
  if (same_stream ? early : !early) {
    const auto count = std::count_if(readers.begin(), readers.end(), reads);
    running.sequence[port] = ports_.publish(static_cast<int>(port), out.slot, static_cast<std::int32_t>(count));
  }
  Token token;
  token.slot = out.slot;
  token.sequence = running.sequence[port];
  token.step = running.context.step + spec_.out_step[port];
  token.microbatch = spec_.out[port].accumulates() ? -1 : running.context.microbatch;
  token.rows = running.result.rows;
  if (trace_ && !running.initial) token.flow = flow_of(running.context.act.number);
  for (const auto& r : readers)
    if (r.same_stream == same_stream && reads(r)) outbox_.arrive(r.actor, r.port, token);
}

void ActorCore::started(std::uint64_t number) {
  Running& r = running_.at(number);
  r.started = true;
  waiting_ = false;
  if (failed_) return;  // PA-3 (act order): readers would see a gap in the sequence
  for (std::size_t i = 0; i < spec_.in.size(); ++i)
    if (spec_.writers[i].same_stream && r.context.act.in[i].last)
      outbox_.ack(spec_.writers[i].actor, spec_.writers[i].port, r.context.act.in[i].token.slot);
  for (std::size_t o = 0; o < spec_.out.size(); ++o)
    if (r.context.act.out[o].last) publish(r, o, true);
  pump();
}

void ActorCore::done(std::uint64_t number, ActDone result) {
  Running& r = running_.at(number);
  ASSERT(r.started, spec_.name, number);
  if (!result.status.ok() && !failed_) {  // at once: earlier acts may wait for a peer that never sends
    failed_ = true;
    outbox_.failed(result.status);
  }
  r.done = true;
  r.result = std::move(result);
  while (!failed_ && !running_.empty() && running_.begin()->second.done) {
    finish(running_.begin()->second);
    running_.erase(running_.begin());
  }
  pump();
}

void ActorCore::finish(Running& r) {
  ActContext& c = r.context;
  if (c.step < 0) c.step = r.result.step;
  for (std::size_t o = 0; o < spec_.out.size(); ++o)
    if (c.act.out[o].last) publish(r, o, false);
  for (std::size_t i = 0; i < spec_.in.size(); ++i) {
    const Writer& w = spec_.writers[i];
    if (w.same_stream || !c.act.in[i].last) continue;
    outbox_.ack(w.actor, w.port, c.act.in[i].token.slot);
  }
  if (trace_ && trace_->wants(c.step)) record(r);
  const auto per_step = std::max<std::size_t>(1, spec_.microbatches.size());
  if (spec_.closes_step && c.local + 1 == static_cast<std::int32_t>(per_step)) outbox_.step_closed(c.step);
}

std::uint64_t ActorCore::flow_of(std::uint64_t act) const { return philox_key(act, spec_.trace_name); }

void ActorCore::record(const Running& r) {
  const ActContext& c = r.context;
  TraceSpan span{spec_.name,
                 c.microbatch < 0 ? spec_.name : fmt::format("{} mb{}", spec_.name, c.microbatch),
                 r.result.begin_ns,
                 r.result.end_ns,
                 c.step,
                 c.microbatch,
                 r.result.flow_in,
                 r.result.flow_out};
  std::uint64_t latest = 0;
  for (const auto& in : c.act.in)  // the trace's arrow begins at the token that arrived last
    if (in.token.arrival > latest && r.result.flow_in == 0) latest = in.token.arrival, span.flow_in = in.token.flow;
  for (std::size_t o = 0; o < c.act.out.size() && span.flow_out == 0; ++o)
    if (c.act.out[o].last && !spec_.readers[o].empty()) span.flow_out = flow_of(c.act.number);
  trace_->record(std::move(span));
}

void ActorCore::append_state(std::int64_t origin, std::vector<std::int64_t>& out) const {
  ports_.append_state(origin, out);
  out.insert(out.end(), {begun_, waiting_, failed_, static_cast<std::int64_t>(running_.size())});
  for (const auto& [number, r] : running_) {
    const ActContext& c = r.context;
    out.insert(out.end(), {static_cast<std::int64_t>(number) - origin, c.step, r.started, r.done, r.result.step});
    for (std::size_t i = 0; i < c.act.in.size(); ++i) {
      ports_.append_state(static_cast<int>(i), c.act.in[i].token, origin, out);
      out.push_back(c.act.in[i].last);
    }
    for (const auto& o : c.act.out) out.push_back(o.first * 2 + o.last);
  }
}

std::string ActorCore::explain() const {
  std::string text = fmt::format("{}: {} acts begun", spec_.name, ports_.acts());
  if (!running_.empty()) {
    const auto& oldest = running_.begin()->second;
    text += fmt::format(", act {} {}", running_.begin()->first, oldest.started ? "runs" : "waits for its stream");
  }
  for (const auto& name : ports_.missing_inputs()) text += ", waits for a token on '" + name + "'";
  for (const auto& name : ports_.missing_credits()) text += ", waits for a free slot of '" + name + "'";
  return text;
}

}  // namespace troupe::actors
