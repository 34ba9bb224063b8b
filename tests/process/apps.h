// The application under test: the MLP of tests/runtime/mlp.h with its actors, and some that take their time or fail.
#pragma once

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "kernels/rules.h"
#include "runtime/launch/app.h"
#include "tests/runtime/mlp.h"

/// Never comes back from its act of step 1.
struct Stuck final : troupe::actors::UserActor {
  troupe::Status act(troupe::actors::UserCall& call) override {
    while (call.step == 1) ::pause();
    return {};
  }
};

/// Takes 0.3 s for each act.
struct Slow final : troupe::actors::UserActor {
  troupe::Status act(troupe::actors::UserCall&) override {
    ::usleep(300'000);
    return {};
  }
};

/// Fills its output with the attribute "value" in the first step, with zeros later.
struct Outlier final : troupe::actors::UserActor {
  explicit Outlier(const troupe::actors::UserActorInfo& info) : value(static_cast<float>(info.attrs.real("value"))) {}
  troupe::Status act(troupe::actors::UserCall& call) override {
    std::fill_n(call.out[0].as<float>(), call.out[0].size(), call.step == 0 ? value : 0);
    return {};
  }
  float value;
};

/// Does nothing but fail in its act of step 3, as if another worker had caused it.
struct Torn final : troupe::actors::UserActor {
  troupe::Status act(troupe::actors::UserCall& call) override {
    if (call.step < 3) return {};
    return {troupe::Code::unavailable, "the tape has ended"};
  }
};

/// Starts a process in its act of step 1 and ends its worker, which that process outlives by seconds.
struct Orphaning final : troupe::actors::UserActor {
  troupe::Status act(troupe::actors::UserCall& call) override {
    if (call.step == 1 && std::system("sleep 8 >/dev/null 2>&1 &") == 0) ::raise(SIGKILL);
    return {};
  }
};

/// y = x, 0.8 s later.
inline troupe::kernels::OpDef nap() {
  troupe::kernels::OpDef op{.name = "nap", .inputs = 1, .outputs = 1, .infer = troupe::kernels::one_shape("nap", 1)};
  op.cpu = [](const troupe::kernels::Call& call) {
    ::usleep(800'000);
    std::copy_n(call.in[0].as<float>(), call.in[0].size(), call.out[0].as<float>());
  };
  return op;
}

inline const troupe::runtime::App& test_app() {
  static const troupe::runtime::App app = [] {
    troupe::runtime::App a;
    for (const auto& [kind, make] : mlp::actor_set()) a.actor(kind, make);
    a.actor<Stuck>("stuck");
    a.actor<Slow>("slow");
    a.actor<Outlier>("outlier");
    a.actor<Torn>("torn");
    a.actor<Orphaning>("orphaning");
    (void)a.op(nap()).ok();
    return a;
  }();
  return app;
}
