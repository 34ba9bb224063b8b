// What a session waits for, in words: whose vote, which microbatch of a feed.
#include <fmt/format.h>

#include "devices/base/text_table.h"
#include "runtime/session/session.h"

namespace troupe::runtime {

std::string Session::waits_for() const {
  std::string text;
  for (const auto& [key, open] : open_) {
    std::string ranks;
    for (Rank r = 0; r < workers_; ++r)
      if (votes(key.first, r) && !open.closed[static_cast<std::size_t>(r)])
        ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", r);
    text += fmt::format("program '{}', step {}: not closed by rank {}\n", plan_.programs[key.first], key.second, ranks);
    for (const auto& f : open.feeds) {
      const std::string name = "  feed '" + f.channel->name + "' ";
      if (!f.untaken.empty()) {
        const auto& [microbatch, places] = *f.untaken.begin();
        text += fmt::format("{}waits for {} to take microbatch {}\n", name, counted(places, "place"), microbatch);
      } else if (f.channel->after.empty() || f.sent < f.channel->at_once) {
        if (f.sent < plan_.program_specs[key.first].microbatches)
          text += fmt::format("{}waits for the messages of an earlier step, which go first\n", name);
      } else if (f.sent < plan_.program_specs[key.first].microbatches) {
        text += fmt::format("{}waits for report '{}' of microbatch {}\n", name, f.channel->after, f.sent - 1);
      }
    }
  }
  return text;
}

}  // namespace troupe::runtime
