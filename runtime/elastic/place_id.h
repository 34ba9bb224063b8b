// PlaceId: a place as the coordinator knows it. A rank names it in a plan, and so for a generation only; its
// place id stays.
#pragma once

#include <cstdint>

namespace troupe::runtime {

enum class PlaceId : std::int32_t {};

}  // namespace troupe::runtime
