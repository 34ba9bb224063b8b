// Planted errors: bugs at the seams of a simulated job, which the seeds must find.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "devices/base/storage.h"
#include "runtime/launch/sim_machines.h"

namespace troupe::scenarios {

enum class Planted : std::uint8_t {
  none,
  unfenced,     ///< links that carry messages of any generation (CL-1 one generation is broken)
  no_sync,      ///< a disk whose sync does nothing (ST-1 synced bytes and ST-2 synced names are broken)
  whole_early,  ///< a memory that takes a group of parameters for whole while an update writes it
  // Of jobs on machines:
  claims_newer,  ///< an agent says that it has kept a version more than it has
  joins_twice,   ///< an agent's machine joins once more, under another name
  two_leaders,   ///< agents name an older generation than their last one, which a job that begins again takes then
  // Of jobs with a store:
  compares_not,     ///< the store's compare-and-set does not compare
  enters_unclaimed  ///< a process enters a generation before the store has given it
};

/// What is wrong with the machines of a job then.
inline runtime::SimMachinesFlaw flaw_of(Planted planted) {
  using runtime::SimMachinesFlaw;
  switch (planted) {
    case Planted::claims_newer: return SimMachinesFlaw::claims_newer;
    case Planted::joins_twice: return SimMachinesFlaw::joins_twice;
    case Planted::two_leaders: return SimMachinesFlaw::two_leaders;
    case Planted::compares_not: return SimMachinesFlaw::compares_not;
    case Planted::enters_unclaimed: return SimMachinesFlaw::enters_unclaimed;
    case Planted::none:
    case Planted::unfenced:
    case Planted::no_sync:
    case Planted::whole_early: break;
  }
  return SimMachinesFlaw::none;
}

/// A Storage that does not sync, over one that does. `inner` outlives it and its files.
class UnsyncedStorage final : public Storage {
 public:
  explicit UnsyncedStorage(Storage& inner) : inner_(inner) {}

  Expected<std::unique_ptr<File>> create(const std::string& path, Access access) override {
    return unsynced(inner_.create(path, access));
  }
  Expected<std::unique_ptr<File>> open(const std::string& path, Access access) override {
    return unsynced(inner_.open(path, access));
  }
  Status make_dir(const std::string& path) override { return inner_.make_dir(path); }
  Status rename(const std::string& from, const std::string& to) override { return inner_.rename(from, to); }
  Status remove(const std::string& path) override { return inner_.remove(path); }
  Status sync_dir(const std::string&) override { return {}; }
  Expected<std::unique_ptr<FolderLock>> lock_dir(const std::string& path) override { return inner_.lock_dir(path); }
  Expected<std::vector<DirEntry>> list(const std::string& path) override { return inner_.list(path); }

 private:
  class UnsyncedFile final : public File {
   public:
    explicit UnsyncedFile(std::unique_ptr<File> inner) : inner_(std::move(inner)) {}
    Status reserve(std::int64_t bytes) override { return inner_->reserve(bytes); }
    Status write_at(std::int64_t offset, const std::byte* data, std::int64_t bytes) override {
      return inner_->write_at(offset, data, bytes);
    }
    Status read_at(std::int64_t offset, std::byte* data, std::int64_t bytes) override {
      return inner_->read_at(offset, data, bytes);
    }
    Expected<std::int64_t> size() override { return inner_->size(); }
    Status sync() override { return {}; }

   private:
    const std::unique_ptr<File> inner_;
  };

  static Expected<std::unique_ptr<File>> unsynced(Expected<std::unique_ptr<File>> file) {
    if (!file.ok()) return file;
    return std::unique_ptr<File>(std::make_unique<UnsyncedFile>(*std::move(file)));
  }

  Storage& inner_;
};

}  // namespace troupe::scenarios
