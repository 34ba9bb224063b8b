// What the program in README.md leaves out: headers, names, a loader. CMake puts this before it.
#pragma once

#include <iostream>

#include "runtime/compile/compile.h"
#include "runtime/launch/app.h"

using namespace troupe;
using namespace troupe::runtime;

struct Data final : actors::UserActor {
  Status act(actors::UserCall& call) override {
    auto& v = call.out[0];
    for (std::int64_t i = 0; i < v.size(); ++i) v.as<float>()[i] = static_cast<float>((i + call.step) % 7) / 7;
    return {};
  }
};
