// How fast checkpoints are written.
#pragma once

#include <string>

#include "devices/base/clock.h"
#include "devices/base/storage.h"
#include "devices/device.h"

namespace troupe::calibrate {

/// Bytes per second at which a file in `folder` is made, written and synced as a worker writes its shard of a
/// checkpoint: past the page cache where that can be, several requests at a time. The median of several files, one
/// after the other, none of which is left. Error: of the disk.
Expected<double> measure_disk(Storage& storage, Device& device, const Clock& clock, const std::string& folder);

}  // namespace troupe::calibrate
