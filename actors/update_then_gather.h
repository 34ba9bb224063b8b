// An act in two halves: the update of a share of the parameters on the compute stream, then the exchange that brings
// the shares of all dp coordinates into the same slot (ZeRO: Rajbhandari et al., 2020). The protocol sees one writer of
// the parameter slot.
#pragma once

#include <memory>

#include "actors/executor.h"

namespace troupe::actors {

class UpdateThenGather final : public Executor {
 public:
  /// `gather` reads the parameter slot as its first input. An error of `update` ends the act without the gather.
  UpdateThenGather(std::shared_ptr<Executor> update, std::shared_ptr<Executor> gather)
      : update_(std::move(update)), gather_(std::move(gather)) {}

  void submit(ActContext context, std::function<void()> started, std::function<void(ActDone)> done) override {
    ActContext second = context;
    second.act.in.assign(1, {});
    second.act.in[0].token.slot = context.act.out[0].slot;
    update_->submit(std::move(context), std::move(started),
                    [gather = gather_, second = std::move(second), done = std::move(done)](ActDone first) {
                      if (!first.status.ok()) return done(std::move(first));
                      gather->submit(
                          second, [] {},
                          [begin = first.begin_ns, done](ActDone last) {
                            last.begin_ns = begin;
                            done(std::move(last));
                          });
                    });
  }

 private:
  std::shared_ptr<Executor> update_, gather_;
};

}  // namespace troupe::actors
