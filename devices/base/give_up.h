// GiveUp: how a caller ends a call that takes long.
#pragma once

#include <functional>

#include "devices/base/status.h"

namespace troupe {

/// Asked by the call before each of its parts; an error ends the call, which returns it.
using GiveUp = std::function<Status()>;
inline Status never_give_up() { return {}; }

}  // namespace troupe
