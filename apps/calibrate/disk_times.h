// How fast checkpoints are written.
#pragma once

#include <string>

#include "devices/base/clock.h"
#include "devices/base/give_up.h"
#include "devices/base/storage.h"
#include "devices/device.h"

namespace troupe::calibrate {

/// Bytes per second at which a file in `folder` is made, written and synced as a worker writes its shard of a
/// checkpoint: past the page cache where that can be, several requests at a time. The median of several files, one
/// after the other, none of which is left. `give_up` is asked before each. Error: of the disk; of `give_up`.
Expected<double> measure_disk(Storage& storage, Device& device, const Clock& clock, const std::string& folder,
                              const GiveUp& give_up = never_give_up);

}  // namespace troupe::calibrate
