// Jobs of tests whose places compute on fibers as on a GPU (runtime/accelerators/fibers.h), and nowhere else.
#pragma once

#include <memory>
#include <stdexcept>

#include "runtime/accelerators/fibers.h"

namespace troupe::test {

/// Whose ops compute on fibers only: a body of the host fails its act.
inline std::shared_ptr<const runtime::Accelerator> fibers_alone() {
  runtime::Accelerator a = runtime::fiber_accelerator();
  a.with_bodies = [bodies = a.with_bodies](const kernels::OpSet& ops) {
    const kernels::OpSet all = bodies(ops);
    kernels::OpSet alone;
    for (const auto& name : all.names()) {
      kernels::OpDef op = *all.find(name);
      op.cpu = [name](const kernels::Call&) { throw std::runtime_error("op '" + name + "' computes on the host"); };
      static_cast<void>(alone.add(std::move(op)));
    }
    return alone;
  };
  return std::make_shared<const runtime::Accelerator>(std::move(a));
}

}  // namespace troupe::test
