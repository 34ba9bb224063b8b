// Secrets in files: a token, a password.
#pragma once

#include <string>

#include "devices/base/status.h"

namespace troupe {

/// The text of a file that its owner alone may read, which is this user. `what` lies in it, for messages ("a token").
/// Error (`io`): it cannot be read; (`invalid`): it is another user's, or others may read it or change it; it is longer
/// than 4,096 bytes.
Expected<std::string> read_secret(const std::string& path, const std::string& what);

}  // namespace troupe
