#include "actors/executor.h"

namespace troupe::actors {

Status exception_status(const std::exception_ptr& exception) {
  try {
    std::rethrow_exception(exception);
  } catch (const std::exception& e) {
    return {Code::internal, std::string("exception: ") + e.what()};
  } catch (...) {
    return {Code::internal, "an exception that is no std::exception"};
  }
}

Status stopped() { return {Code::unavailable, "stopped: its stream is being quiesced"}; }

StreamExecutor::StreamExecutor(std::string name, Stream& stream, std::unique_ptr<Body> body, std::int32_t priority,
                               std::uint32_t run, double cost_s)
    : name_(std::move(name)), stream_(stream), body_(std::move(body)), priority_(priority), run_(run), cost_s_(cost_s) {
}

void StreamExecutor::submit(ActContext context, std::function<void()> started, std::function<void(ActDone)> done) {
  auto status = std::make_shared<Status>();
  Task task;
  task.name = name_;
  task.order = {priority_, context.step, context.microbatch, run_, context.turn};
  task.cost_s = cost_s_;
  task.on_start = std::move(started);
  task.work = [body = body_, context = std::move(context), status](Parallel& parallel) {
    // No exception crosses an actor boundary.
    try {
      *status = body->run(context, parallel);
    } catch (...) {
      *status = exception_status(std::current_exception());
    }
  };
  task.on_done = [status, done = std::move(done)](std::int64_t begin, std::int64_t end) {
    done({*status, begin, end});
  };
  stream_.submit(std::move(task));
}

}  // namespace troupe::actors
