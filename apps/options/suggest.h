// "Did you mean ...?": the known name that is nearest to a name that a user typed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace troupe::lm {

/// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
int edit_distance(std::string_view a, std::string_view b);

/// The nearest of `known`; of dotted names the last part counts too ("steps" finds "schedule.steps").
/// Empty when nothing is known.
std::string nearest(std::string_view typed, const std::vector<std::string>& known);

}  // namespace troupe::lm
