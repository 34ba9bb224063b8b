// What a run waits for, in words: whose vote, which microbatch of a feed.
#include <fmt/format.h>

#include "devices/base/text_table.h"
#include "runtime/session/decisions.h"

namespace troupe::runtime {

std::string Decisions::waits_for() const {
  std::string text;
  for (const auto& [step, open] : open_) {
    std::string voters;
    for (std::size_t v = 0; v < open.closed.size(); ++v)
      if (votes_[static_cast<std::size_t>(step.program)][v] && !open.closed[v])
        voters += fmt::format("{}{}", voters.empty() ? "" : ", ", v);
    text += fmt::format("program '{}', step {}: not closed by rank {}\n",
                        plan_.programs[static_cast<std::size_t>(step.program)].name, step.step, voters);
    for (const auto& f : open.feeds) {
      const PlanChannel& channel = *f.feed.channel;
      const std::string name = "  feed '" + channel.name + "' ";
      if (!f.untaken.empty()) {
        const auto& [microbatch, voters] = *f.untaken.begin();
        text += fmt::format("{}waits for {} to take microbatch {}\n", name, counted(std::ssize(voters), "place"),
                            microbatch);
      } else if (channel.after.empty() || f.sent < channel.at_once) {
        if (f.sent < microbatches(channel.program))
          text += fmt::format("{}waits for the messages of an earlier step, which go first\n", name);
      } else if (f.sent < microbatches(channel.program)) {
        text += fmt::format("{}waits for report '{}' of microbatch {}\n", name, channel.after, f.sent - 1);
      }
    }
  }
  return text;
}

}  // namespace troupe::runtime
