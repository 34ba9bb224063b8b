// An act in two halves: the update of a share of the parameters on the compute stream, then the exchange that brings
// everybody's shares into the same slot (ZeRO: Rajbhandari et al., 2020). To the protocol it is one in-place writer.
#pragma once

#include <memory>

#include "actors/act.h"

namespace troupe::actors {

class UpdateThenGather final : public Executor {
 public:
  /// `gather` finds its source, the parameter slot, in the place of its first input.
  UpdateThenGather(std::shared_ptr<Executor> update, std::shared_ptr<Executor> gather)
      : update_(std::move(update)), gather_(std::move(gather)) {}

  void submit(ActContext context, std::function<void()> started, std::function<void(ActDone)> done) override {
    ActContext second = context;
    second.act.in.assign(1, {});
    second.act.in[0].token.slot = context.act.out[0].slot;
    update_->submit(std::move(context), std::move(started),
                    [gather = gather_, second = std::move(second), done = std::move(done)](ActDone first) {
                      if (!first.status.ok()) return done(std::move(first));
                      gather->submit(second, [] {}, [begin = first.begin_ns, done](ActDone last) {
                        last.begin_ns = begin;
                        done(std::move(last));
                      });
                    });
  }

 private:
  std::shared_ptr<Executor> update_, gather_;
};

}  // namespace troupe::actors
