// What was tried to hide exchanges inside stages, for people.
#include <fmt/format.h>

#include "devices/base/text_table.h"
#include "runtime/search/ahead.h"
#include "runtime/show/plan_text.h"

namespace troupe::runtime {

namespace {

std::string verdict_text(const AheadTried& t) {
  switch (t.verdict) {
    case AheadVerdict::chosen: return "chosen";
    case AheadVerdict::surpassed: return "given up for a later one";
    case AheadVerdict::gains_little: return "gains too little";
    case AheadVerdict::loses: return "loses too much";
    case AheadVerdict::rivalled: return "one microbatch more gains 1 %";
    case AheadVerdict::does_not_fit: return "does not fit";
    case AheadVerdict::refused: return "refused: " + t.why;
  }
  return {};
}

}  // namespace

std::string ahead_text(const std::vector<AheadTried>& tried, const std::string& bound) {
  std::vector<TextRow> rows;
  for (const AheadTried& t : tried) {
    // The only plan is taken, whether it fits or not.
    const bool only = tried.size() == 1 && t.verdict == AheadVerdict::does_not_fit;
    const bool played = t.verdict != AheadVerdict::refused;
    rows.push_back({{fmt::to_string(t.ahead), t.weights_apart ? "apart" : "with backward",
                     played ? human_seconds(t.step_s) : "", played ? human_bytes(t.place_bytes) : "",
                     verdict_text(t) + (only ? ", and is chosen: there is no smaller one" : "")},
                    {}});
  }
  return "what hides exchanges inside stages: microbatches ahead of 1F1B, weight gradients apart\nmemory: " + bound +
         "\n" +
         table_text({">ahead", "weight gradients", ">predicted step", ">peak memory of a place", "verdict"}, rows);
}

}  // namespace troupe::runtime
