#include "runtime/elastic/stall_text.h"

#include <fmt/format.h>

namespace troupe::runtime {

std::string waits_text(const std::vector<std::int32_t>& places, const std::string& session_waits,
                       const std::map<Rank, std::string>& explanations) {
  std::string text = session_waits;
  for (Rank r = 0; r < static_cast<Rank>(places.size()); ++r) {
    const auto told = explanations.find(r);
    text += fmt::format("worker {}", places[static_cast<std::size_t>(r)]) +
            (told != explanations.end() ? ":\n" + told->second : " does not answer\n");
  }
  return text;
}

std::string stall_text(double stall_s, const std::vector<std::int32_t>& places, const std::string& session_waits,
                       const std::map<Rank, std::string>& explanations) {
  std::string silent;  // the workers that may have caused the stall
  int count = 0;
  const auto workers = static_cast<Rank>(places.size());
  for (Rank r = 0; r < workers; ++r)
    if (!explanations.count(r)) silent += fmt::format("{}{}", count++ > 0 ? ", " : "", places[r]);
  std::string text = fmt::format("no progress for {:.3g} s", stall_s);
  if (count > 0)
    text += count == 1 ? ": worker " + silent + " does not answer" : ": workers " + silent + " do not answer";
  return text + "\n" + waits_text(places, session_waits, explanations);
}

}  // namespace troupe::runtime
