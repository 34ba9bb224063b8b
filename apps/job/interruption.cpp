#include "apps/job/interruption.h"

#include <cstring>
#include <string>

namespace troupe::lm {

Status Interruption::status() {
  const auto signal = signals_->take();
  if (signal && first_.ok()) first_ = Status(Code::unavailable, std::string("interrupted by ") + ::strsignal(*signal));
  return first_;
}

}  // namespace troupe::lm
