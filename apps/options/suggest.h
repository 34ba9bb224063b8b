// "Did you mean ...?": the known name that is nearest to a name that a user typed.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace troupe::lm {

/// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
int edit_distance(std::string_view a, std::string_view b);

/// Returns the name of `known` that is nearest to `typed`, the first of equals; empty if none is near. The distance is
/// edit_distance of the whole names, or of their parts after the last dot plus 1 ("steps" finds "schedule.steps"),
/// whichever is less. Near: at most 2 edits, or a third of the length of the name's last part if that is more, and
/// fewer edits than the longer of the two last parts has letters.
std::string nearest(std::string_view typed, const std::vector<std::string>& known);

/// "; did you mean 'steps'?", the end of an error's message; empty if no name of `known` is near.
std::string did_you_mean(std::string_view typed, const std::vector<std::string>& known);

}  // namespace troupe::lm
