// A signal that ends a command while it opens its text, before there is a job that the signal would end.
#pragma once

#include <optional>
#include <utility>

#include "devices/base/give_up.h"
#include "devices/base/status.h"
#include "devices/process/end_signals.h"
#include "runtime/elastic/exit_codes.h"

namespace troupe::lm {

class Interruption {
 public:
  /// Returns what `open` returns, an Expected: it opens a text, and gives up where its GiveUp says so. Where a signal
  /// (EndSignals) has come meanwhile it is the error instead, `code` its exit code, and signals do nothing
  /// more while this object lives: a second one must not cut short what the caller does at its end. Else signals have
  /// their usual effect again, one that comes at the last moment, too.
  template <class Open>
  auto during(Open open, int& code) {
    signals_.emplace();
    auto opened = open(GiveUp([this] { return signals_->interrupted(); }));
    if (Status s = signals_->interrupted(); !s.ok()) {  // where it has ended `open`, too
      code = runtime::exit_interrupted;
      return decltype(opened)(std::move(s));
    }
    signals_->pass_on();
    signals_.reset();
    return opened;
  }

 private:
  std::optional<EndSignals> signals_;
};

}  // namespace troupe::lm
