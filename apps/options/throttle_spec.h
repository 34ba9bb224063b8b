// What --throttle says: "latency=50us,bandwidth=100MB/s" for every link, "0-1:bandwidth=1GB/s" for one.
#pragma once

#include <string_view>

#include "comm/throttled/throttled_transport.h"
#include "placement/cost.h"

namespace troupe::lm {

/// Latency in ns, us, ms or s; bandwidth in B/s, KB/s, MB/s or GB/s, decimal. One of them may be left out: no delay, no
/// limit. Error: names the part that is not understood, and the two forms above.
Expected<comm::Throttle> parse_throttle(std::string_view text);

/// Adds throttles to the links of a cost model: a message takes the time of the link, then the time of the throttle.
void slow_down(CostModel& costs, const std::vector<comm::Throttle>& throttle);

}  // namespace troupe::lm
