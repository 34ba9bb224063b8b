// How long kernels take on this machine: every op of some plans at the sizes that these have, at one worker and at
// several equally busy ones, through the device that runs them.
#pragma once

#include <string>
#include <vector>

#include "devices/base/give_up.h"
#include "devices/device.h"
#include "runtime/plan/plan.h"

namespace troupe::calibrate {

/// One kernel at one size.
struct KernelCase {
  struct Argument {
    kernels::View view;  ///< without data
    bool cold = false;   ///< a parameter or its gradient: no cache keeps them from step to step
  };
  std::string op;
  std::vector<Argument> in, out;
  kernels::Attrs attrs;
  double flops = 0, bytes = 0;
  std::int64_t scratch_bytes = 0;
  std::function<void(const kernels::Call&)> run;
};

/// The ops of a plan's step program at the first place of each stage; and the kernels for gradients outside the
/// graph (sums of gradients, norms, the optimizer) at the size of its parameter channels.
std::vector<KernelCase> kernel_cases(const runtime::Plan& plan, const kernels::OpSet& ops);

/// Adds the cases of `more` that differ in op or size from each of `cases`.
void add_distinct(std::vector<KernelCase>& cases, std::vector<KernelCase> more);

/// Measures each case while `workers` streams of `threads` threads each run the same calls. Returns the times, by op.
/// Takes some 20 ms a case; calls `give_up` before each case. Error: memory; of `give_up`.
Expected<std::map<std::string, std::vector<KernelTime>>> measure_kernels(Device& device,
                                                                         const std::vector<KernelCase>& cases,
                                                                         int workers, int threads,
                                                                         const GiveUp& give_up = never_give_up);

}  // namespace troupe::calibrate
