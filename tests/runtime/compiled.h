// A plan that compiles and verifies, or the test ends.
#pragma once

#include <doctest/doctest.h>

#include <utility>

#include "runtime/compile/compile.h"
#include "runtime/verify/verify.h"

namespace mlp {

inline troupe::runtime::Plan compiled(const troupe::runtime::Graph& g, const troupe::runtime::CompileOptions& o) {
  auto p = troupe::runtime::compile(g, o);
  REQUIRE_MESSAGE(p.ok(), p.status().message());
  const troupe::Status verified = troupe::runtime::verify(*p);
  REQUIRE_MESSAGE(verified.ok(), verified.message());
  return *std::move(p);
}

}  // namespace mlp
