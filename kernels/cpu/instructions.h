// What the kernels are compiled for. This file's body is compiled as they are, and runs on any processor.
#pragma once

namespace troupe::kernels::cpu {

/// The name of instructions that the kernels use and this processor has not ("avx512f"); null: it has all.
const char* missing_instructions();

}  // namespace troupe::kernels::cpu
