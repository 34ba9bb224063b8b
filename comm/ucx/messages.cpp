#include "comm/ucx/messages.h"

namespace troupe::comm::ucx {

bool makes_sense(const ControlWire& wire) {
  return wire.magic == Header().magic && wire.from >= 0 && wire.from < kRanksMax && wire.kind <= Control::bye;
}

Status status_of(ucs_status_t s, const std::string& what) {
  if (s == UCS_OK) return {};
  switch (s) {
    case UCS_ERR_CANCELED:
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_REJECTED:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_SHMEM_SEGMENT:
    case UCS_ERR_IO_ERROR:  // with cma, where the process whose memory we read has just died
      return {Code::unavailable, what + " is gone (" + ucs_status_string(s) + ")"};
    default: return {Code::io, what + ": " + ucs_status_string(s)};
  }
}

}  // namespace troupe::comm::ucx
