// Whether this processor is one that this build's kernels run on, and whether another machine's makes of the same
// values the same bits: NU-0 (kernels) holds for one executable on one processor with one C library, whose sine, say,
// is chosen for the processor as the program starts.
#pragma once

#include <string>

#include "devices/base/status.h"

namespace troupe::kernels {

/// Error (`invalid`): the kernels are compiled for instructions that this processor has not; names one of them.
Status check_processor();

/// A digest, as text, of what kernels make of fixed values, and of the functions of the C library that they call. Where
/// two machines with the same executable have another one each, bits depend on which of them computes what. Takes some
/// milliseconds.
std::string numbers_digest();

}  // namespace troupe::kernels
