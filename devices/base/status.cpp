#include "devices/base/status.h"

#include "devices/base/check.h"

namespace troupe {

const char* to_string(Code code) {
  switch (code) {
    case Code::ok: return "ok";
    case Code::invalid: return "invalid";
    case Code::not_found: return "not found";
    case Code::io: return "io";
    case Code::unavailable: return "unavailable";
    case Code::exhausted: return "exhausted";
    case Code::damaged: return "damaged";
    case Code::denied: return "denied";
    case Code::superseded: return "superseded";
    case Code::internal: return "internal";
    case Code::interrupted: return "interrupted";
  }
  return "unknown";
}

void expected_without_value(const Status& status) {
  check_failed("REQUIRE", "Expected has a value", __FILE__, __LINE__, status.message());
}

}  // namespace troupe
