// Whether this processor is one that this build's kernels run on, and whether another machine's makes of the same
// values the same bits. NU-0 (kernels) holds for one executable on every processor that has its instructions: kernels
// call no function of the C library whose result IEEE 754 leaves open (kernels/exact_math.h). A machine that computes
// otherwise has a fault.
#pragma once

#include <string>

#include "devices/base/status.h"

namespace troupe::kernels {

/// Error (`invalid`): the kernels are compiled for instructions that this processor has not; names one of them.
Status check_processor();

/// A digest, as text, of what kernels make of fixed values. Where two machines with the same executable have another
/// one each, bits depend on which of them computes what. Takes some milliseconds.
std::string numbers_digest();

}  // namespace troupe::kernels
