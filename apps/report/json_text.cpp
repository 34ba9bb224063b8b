#include "apps/report/json_text.h"

#include <nlohmann/json.hpp>

namespace troupe::report {

std::string json_text(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace troupe::report
