// What the fuzz targets for messages begin with.
#pragma once

#include <string>
#include <vector>

#include "devices/base/status.h"
#include "tests/fuzz/input.h"

namespace troupe::fuzz {

struct Seed {
  std::string target, name;
  Bytes bytes;
};

/// At least one of each kind of message, a few frames, and a few handshakes.
std::vector<Seed> message_seeds();
/// Small plans, as a worker hears them. Error: one cannot be compiled.
Expected<std::vector<Seed>> plan_seeds();

}  // namespace troupe::fuzz
