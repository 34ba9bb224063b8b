#include "apps/calibrate/disk_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <memory>
#include <mutex>
#include <vector>

#include "checkpoint/requests.h"
#include "devices/base/philox.h"
#include "runtime/launch/fresh_number.h"

namespace troupe::calibrate {

namespace {

constexpr int files = 5, threads = 4;  // as many threads as a worker's stream to the disk has
constexpr std::int64_t file_bytes = std::int64_t{64} << 20;

/// Bytes that no disk can make fewer.
void fill(std::byte* to, std::int64_t bytes) {
  const auto key = philox_key(0, "calibrate.disk");
  for (std::int64_t at = 0; at < bytes; at += 16) {
    const auto random = philox(key, static_cast<std::uint64_t>(at), 0);
    std::memcpy(to + at, random.data(), 16);
  }
}

/// Makes, writes and syncs a file. Returns when all of it is on the disk.
Status write_synced(Storage& storage, Stream& stream, const std::string& path, const std::byte* data) {
  TROUPE_ASSIGN(const auto file, storage.create(path, Access::direct));
  TROUPE_TRY(file->reserve(file_bytes));
  std::mutex mutex;
  Status failure;
  // the stream may still be in set_value when the wait ends
  const auto written = std::make_shared<std::promise<void>>();
  Task task;
  task.work = [&](Parallel& par) {
    par.for_each(file_bytes / checkpoint::request_bytes, [&](std::int64_t i) {
      const std::int64_t at = i * checkpoint::request_bytes;
      const Status s = file->write_at(at, data + at, checkpoint::request_bytes);
      std::lock_guard lock(mutex);
      if (failure.ok()) failure = s;
    });
  };
  task.on_done = [written](std::int64_t, std::int64_t) { written->set_value(); };
  auto over = written->get_future();
  stream.submit(std::move(task));
  over.wait();
  TROUPE_TRY(failure);
  TROUPE_TRY(file->sync());
  return storage.sync_dir(folder_of(path));
}

}  // namespace

Expected<double> measure_disk(Storage& storage, Device& device, const Clock& clock, const std::string& folder,
                              const GiveUp& give_up) {
  TROUPE_ASSIGN(const auto data, device.allocate(static_cast<std::size_t>(file_bytes)));
  fill(data->data(), file_bytes);
  const auto stream = device.create_stream("disk", threads);
  // Another process may measure the same disk, also from another machine.
  const std::string path = fmt::format("{}/troupe-calibrate-{:016x}.tmp", folder, runtime::fresh_number());
  std::vector<double> rates;
  for (int i = 0; i < files; ++i) {
    TROUPE_TRY(give_up());
    const auto begin_ns = clock.now_ns();
    const Status s = write_synced(storage, *stream, path, data->data());
    const auto ns = std::max<std::int64_t>(1, clock.now_ns() - begin_ns);
    const Status removed = storage.remove(path);
    TROUPE_TRY(s);
    TROUPE_TRY(removed);
    rates.push_back(static_cast<double>(file_bytes) / (static_cast<double>(ns) * 1e-9));
  }
  std::nth_element(rates.begin(), rates.begin() + files / 2, rates.end());
  return rates[files / 2];
}

}  // namespace troupe::calibrate
