// StatePart: the three tensors that are kept of a parameter.
#pragma once

#include <cstdint>

namespace troupe::runtime {

enum class StatePart : std::uint8_t { parameter, first_moment, second_moment };
inline constexpr StatePart state_parts[] = {StatePart::parameter, StatePart::first_moment, StatePart::second_moment};

}  // namespace troupe::runtime
