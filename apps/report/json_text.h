// Texts of any bytes in JSON.
#pragma once

#include <string>

namespace troupe::report {

/// `text` as a JSON string, quotes included; bytes that are not UTF-8 are replaced.
std::string json_text(const std::string& text);

}  // namespace troupe::report
