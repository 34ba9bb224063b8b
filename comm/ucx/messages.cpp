#include "comm/ucx/messages.h"

namespace troupe::comm::ucx {

bool makes_sense(const ControlWire& wire) {
  return wire.magic == Header().magic && wire.from >= 0 && wire.from < kRanksMax && wire.kind <= Control::bye;
}

}  // namespace troupe::comm::ucx
