// The address at which other machines reach this one.
#pragma once

#include <string>
#include <vector>

#include "devices/base/status.h"

namespace troupe::lm {

/// Without a port; one of IPv6 in brackets. In this order: the address from which the first of `others` that has one is
/// reached (a name, or USER@NAME); the address of this machine's host name, where that is none of the machine itself
/// (127.0.1.1); the address of the one network interface that is up. Error (`invalid`): there are several, which it
/// names, or none.
Expected<std::string> own_address(const std::vector<std::string>& others);

}  // namespace troupe::lm
