#include "actors/communicator.h"

#include <deque>
#include <mutex>

#include "actors/actor_scheduler.h"

namespace troupe::actors {

struct Communicator::Shared : std::enable_shared_from_this<Communicator::Shared> {
  struct Waiting {
    ActContext context;
    std::function<void()> started;
    std::function<void(ActDone)> done;
  };
  CommunicatorSpec spec;
  comm::Transport& transport;
  Stream& stream;
  const Clock& clock;
  std::mutex mutex;
  std::deque<Waiting> waiting;  // acts that wait for staging memory
  std::vector<std::byte*> free_staging;

  Shared(CommunicatorSpec s, comm::Transport& t, Stream& st, const Clock& c)
      : spec(std::move(s)), transport(t), stream(st), clock(c), free_staging(spec.staging) {}

  void submit(Waiting w) {
    std::byte* staging = nullptr;
    const auto& route = spec.routes[spec.route_of[w.context.local]];
    if (route.staging_bytes > 0) {
      std::lock_guard lock(mutex);
      if (free_staging.empty()) {
        waiting.push_back(std::move(w));
        return;
      }
      staging = free_staging.back();
      free_staging.pop_back();
    }
    start(std::move(w), route, staging);
  }

  void start(Waiting w, const comm::Route& route, std::byte* staging) {
    const ActContext& c = w.context;
    comm::ExchangeAct act;
    act.header = spec.header;
    const auto per_step = static_cast<std::uint64_t>(spec.route_of.size());
    const std::uint64_t run = c.act.number / per_step;
    // Both ends number a message by (run of the program, microbatch), never by their own act count.
    act.header.sequence = static_cast<std::uint32_t>(run * spec.acts_per_run + (c.microbatch < 0 ? 0 : c.microbatch));
    act.header.step = static_cast<std::uint64_t>(c.step < 0 ? 0 : c.step);
    act.header.microbatch = c.microbatch;
    for (std::size_t i = 0; i < spec.in.size(); ++i) act.sources.push_back(spec.in[i].at(c.act.in[i].token.slot));
    if (!spec.in.empty()) act.header.slot = static_cast<std::uint32_t>(c.act.in[0].token.slot);
    if (spec.has_out) act.destination = spec.out.at(c.act.out[0].slot);
    act.staging = staging;
    act.first = !spec.has_out || c.act.out[0].first;
    // Acts that add to one slot have equal keys in the stream's order, so that they run in the order in which they
    // begin.
    act.order = {spec.priority, c.step, route.sums ? -1 : c.microbatch, 0};
    act.adding_s = spec.adding_s;
    const std::int64_t begin = clock.now_ns();
    const bool knows_step = c.step >= 0;
    auto done = std::move(w.done);
    w.started();
    comm::run_exchange(route, act, transport, stream,
                       [self = shared_from_this(), done = std::move(done), staging, begin, knows_step](
                           Status status, const comm::Header& header) {
                         // Actors run when the act that waited for staging memory has begun and this act is over.
                         const LendThread lent;
                         // After a failure the network may still write to staging, until the transport is shut down.
                         if (staging && status.ok()) self->give_back(staging);
                         ActDone result{std::move(status), begin, self->clock.now_ns()};
                         // The trace draws an arrow between two workers by an id that both derive from the header.
                         const std::uint64_t flow = (std::uint64_t{header.channel} + 1) << 32 | header.sequence;
                         if (self->spec.in.empty()) result.flow_in = flow;
                         if (!self->spec.has_out) result.flow_out = flow;
                         if (!knows_step) result.step = static_cast<std::int64_t>(header.step);
                         done(std::move(result));
                       });
  }

  void give_back(std::byte* staging) {
    std::unique_lock lock(mutex);
    if (waiting.empty()) {
      free_staging.push_back(staging);
      return;
    }
    Waiting next = std::move(waiting.front());
    waiting.pop_front();
    lock.unlock();
    const auto& route = spec.routes[spec.route_of[next.context.local]];
    start(std::move(next), route, staging);
  }
};

Communicator::Communicator(CommunicatorSpec spec, comm::Transport& transport, Stream& stream, const Clock& clock)
    : shared_(std::make_shared<Shared>(std::move(spec), transport, stream, clock)) {}

void Communicator::submit(ActContext context, std::function<void()> started, std::function<void(ActDone)> done) {
  shared_->submit({std::move(context), std::move(started), std::move(done)});
}

}  // namespace troupe::actors
