// What a text must be before it goes to the TOML parser, which takes a part of a key for a call of a function.
#pragma once

#include <string>
#include <string_view>

#include "devices/base/status.h"

namespace troupe::lm {

/// Error: a key or a section's name has more parts ("a.b" has two) than any that this program knows, so many that the
/// parser would leave its stack. `name` stands for the file in the message.
Status check_keys(std::string_view text, const std::string& name);

/// Whether a text is UTF-8, as all text in TOML and JSON is.
bool is_utf8(std::string_view text);

}  // namespace troupe::lm
