// What `troupe calibrate` finds out of a disk, over one whose operations take known times.
#include "apps/calibrate/disk_times.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "devices/cpu/cpu_device.h"

using namespace troupe;
using namespace troupe::calibrate;

namespace {

constexpr std::int64_t ms = 1'000'000;  ///< in nanoseconds

/// A disk that forgets what is written, and the clock by which its operations take their times.
class TimedDisk final : public Storage, public Clock {
 public:
  std::vector<std::string> operations;              ///< in order; those of one kind that follow each other once
  std::int64_t bytes = 0, writes = 0;               ///< of all files
  std::set<std::string> there;                      ///< files
  std::set<std::string> names;                      ///< of all files that were made
  std::string failing;                              ///< the operation that does
  const std::vector<int> sync_s = {9, 1, 3, 2, 4};  ///< of one file after the other

  std::int64_t now_ns() const override {
    const std::lock_guard lock(mutex_);
    return now_ns_;
  }
  /// Does an operation, on any thread.
  Status take(const std::string& operation, std::int64_t ns) {
    const std::lock_guard lock(mutex_);
    now_ns_ += ns;
    if (operations.empty() || operations.back() != operation) operations.push_back(operation);
    return operation == failing ? Status(Code::io, "a fault") : Status();
  }
  Status write(std::int64_t offset, std::int64_t n) {
    TROUPE_TRY(take("write", ms / 10));
    const std::lock_guard lock(mutex_);
    if (offsets_.insert(offset).second) bytes += n;  // each once
    ++writes;
    return {};
  }
  Status sync() { return take("sync", sync_s.at(files_ - 1) * 1000 * ms); }

  Expected<std::unique_ptr<File>> create(const std::string& path, Access access) override;
  Expected<std::unique_ptr<File>> open(const std::string&, Access) override { return invalid("not asked for"); }
  Status make_dir(const std::string&) override { return invalid("not asked for"); }
  Status rename(const std::string&, const std::string&) override { return invalid("not asked for"); }
  Status remove(const std::string& path) override {
    TROUPE_TRY(take("remove", 3'600'000 * ms));
    return there.erase(path) == 1 ? Status() : Status(Code::not_found, path);
  }
  Status sync_dir(const std::string& path) override {
    CHECK(path == "disk");
    return take("sync_dir", 7 * ms);
  }
  Expected<std::unique_ptr<FolderLock>> lock_dir(const std::string&) override { return invalid("not asked for"); }
  Expected<std::vector<DirEntry>> list(const std::string&) override { return invalid("not asked for"); }

 private:
  mutable std::mutex mutex_;
  std::int64_t now_ns_ = 0;
  std::size_t files_ = 0;           ///< made so far
  std::set<std::int64_t> offsets_;  ///< of the last one's writes
};

class TimedFile final : public File {
 public:
  explicit TimedFile(TimedDisk& disk) : disk_(disk) {}
  Status reserve(std::int64_t) override { return disk_.take("reserve", 2 * ms); }
  Status write_at(std::int64_t offset, const std::byte*, std::int64_t bytes) override {
    return disk_.write(offset, bytes);
  }
  Status read_at(std::int64_t, std::byte*, std::int64_t) override { return invalid("not asked for"); }
  Expected<std::int64_t> size() override { return invalid("not asked for"); }
  Status sync() override { return disk_.sync(); }

 private:
  TimedDisk& disk_;
};

Expected<std::unique_ptr<File>> TimedDisk::create(const std::string& path, Access access) {
  CHECK(access == Access::direct);
  CHECK(folder_of(path) == "disk");
  TROUPE_TRY(take("create", 1 * ms));
  if (!there.insert(path).second) return Status(Code::io, path);
  names.insert(path);
  ++files_;
  offsets_.clear();
  return std::unique_ptr<File>(std::make_unique<TimedFile>(*this));
}

}  // namespace

TEST_CASE("the rate of a disk is the median over five files of bytes by the seconds to make, write and sync each") {
  TimedDisk disk;
  SteadyClock clock;
  CpuDevice device(clock);
  const auto rate = measure_disk(disk, device, disk, "disk");
  REQUIRE_MESSAGE(rate.ok(), rate.status().message());
  std::vector<std::string> expected;
  for (int file = 0; file < 5; ++file)
    expected.insert(expected.end(), {"create", "reserve", "write", "sync", "sync_dir", "remove"});
  CHECK(disk.operations == expected);
  CHECK(disk.bytes == 5 * (std::int64_t{64} << 20));
  CHECK(disk.there.empty());
  const double seconds = 3 + (1 + 2 + 7) * 1e-3 + static_cast<double>(disk.writes) / 5 * 1e-4;
  CHECK(*rate == doctest::Approx(static_cast<double>(disk.bytes) / 5 / seconds).epsilon(1e-9));
}

TEST_CASE("a disk that fails while it is measured is an error, and no file is left there") {
  for (const char* failing : {"reserve", "write", "sync", "sync_dir"}) {
    CAPTURE(failing);
    TimedDisk disk;
    disk.failing = failing;
    SteadyClock clock;
    CpuDevice device(clock);
    CHECK(measure_disk(disk, device, disk, "disk").status().code() == Code::io);
    CHECK(disk.there.empty());
    CHECK(disk.operations.back() == "remove");
  }
}

TEST_CASE("a disk is measured until the caller gives up, between two files, and no file is left there") {
  TimedDisk disk;
  SteadyClock clock;
  CpuDevice device(clock);
  int asked = 0;
  const auto rate = measure_disk(disk, device, disk, "disk",
                                 [&] { return ++asked < 3 ? Status() : Status(Code::unavailable, "enough"); });
  CHECK(rate.status().message() == "enough");
  CHECK(disk.bytes == 2 * (std::int64_t{64} << 20));
  CHECK(disk.there.empty());
}

TEST_CASE("measurements of one disk by several processes have files of different names: they may go on at once") {
  char self[4096] = {};
  REQUIRE(::readlink("/proc/self/exe", self, sizeof self - 1) > 0);
  const std::string command = "'" + std::string(self) + "' -tc='a measurement that tells*' --no-skip=true";
  std::set<std::string> names;
  constexpr std::size_t processes = 2, measurements = 2;
  for (std::size_t process = 0; process < processes; ++process) {
    std::FILE* pipe = ::popen(command.c_str(), "r");
    REQUIRE(pipe != nullptr);
    char line[512];
    while (std::fgets(line, sizeof line, pipe))
      if (std::string(line).starts_with("disk/")) names.insert(line);
    CHECK(::pclose(pipe) == 0);
  }
  CHECK(names.size() == processes * measurements);
}

TEST_CASE("a measurement that tells the name of its file, and another one" * doctest::skip()) {
  SteadyClock clock;
  CpuDevice device(clock);
  for (int i = 0; i < 2; ++i) {
    TimedDisk disk;
    REQUIRE(measure_disk(disk, device, disk, "disk").ok());
    REQUIRE(disk.names.size() == 1);
    std::printf("%s\n", disk.names.begin()->c_str());
  }
}
