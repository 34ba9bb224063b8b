// The application under test: the MLP of tests/runtime/mlp.h with its actors, and one that gets stuck.
#pragma once

#include <unistd.h>

#include "runtime/app.h"
#include "tests/runtime/mlp.h"

/// Never comes back from its act of step 1.
struct Stuck final : troupe::actors::UserActor {
  troupe::Status act(troupe::actors::UserCall& call) override {
    while (call.step == 1) ::pause();
    return {};
  }
};

inline const troupe::runtime::App& test_app() {
  static const troupe::runtime::App app = [] {
    troupe::runtime::App a;
    for (const auto& [kind, make] : mlp::actor_set()) a.actor(kind, make);
    a.actor<Stuck>("stuck");
    return a;
  }();
  return app;
}
