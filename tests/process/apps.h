// The application under test: the MLP of tests/runtime/mlp.h with its actors.
#pragma once

#include "runtime/app.h"
#include "tests/runtime/mlp.h"

inline const troupe::runtime::App& test_app() {
  static const troupe::runtime::App app = [] {
    troupe::runtime::App a;
    for (const auto& [kind, make] : mlp::actor_set()) a.actor(kind, make);
    return a;
  }();
  return app;
}
