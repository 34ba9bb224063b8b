// FileStore: the store of a job in a folder, which may be on a filesystem that several machines share.
//
//   DIR/membership/00000007/claim     the text of a claim (claim_text.h); its revision is the folder's number
//   DIR/membership/new-9a...-1        a claim that is being made, or of a process that died over it
//
//   FM-1  (exclusive) a claim is made whole and synced under another name, and then renamed: a folder that has a file
//         in it is replaced by no rename, so one process has each number;
//   FM-2  (used) a number is used once: of old claims the text is emptied, and the folder stays until the job is
//         withdrawn. A number whose claim cannot be read is used, too (its process died, or the disk has lost it);
//   FM-3  (newest) the newest number with a claim that can be read is what the store holds;
//   FM-4  (withdrawn) a job is withdrawn by one more number, whose text says so. Then the folders are removed, that
//         of the last number at the end.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "devices/base/clock.h"
#include "devices/base/storage.h"
#include "runtime/store/store.h"

namespace troupe::runtime {

class FileStore final : public Store {
 public:
  /// `dir`: the folder of the job, which need not be there. REQUIRES: `storage` and `clock` outlive it.
  FileStore(Storage& storage, const Clock& clock, const std::string& dir)
      : storage_(storage), clock_(clock), dir_(dir + "/membership") {}

  Expected<std::optional<StoredClaim>> read() override;
  Expected<std::optional<std::int64_t>> advance(std::int64_t expected, const Claim& next, bool takes_lead) override;
  Expected<bool> keep_lead() override;
  std::int64_t keep_every_ms() const override { return 0; }
  bool tells_of_loss() const override { return false; }
  Status wait_for_change(std::int64_t revision, std::int64_t most_ms) override;
  Status withdraw() override;
  std::string name() const override { return "files in " + dir_; }

 private:
  /// What the folder holds at one moment.
  struct Content {
    std::vector<std::int64_t> numbers;  ///< that are used, in order
    std::optional<StoredClaim> newest;  ///< that can be read
    bool has(std::int64_t number) const;
    std::int64_t last() const { return numbers.empty() ? 0 : numbers.back(); }
  };

  Expected<Content> look();
  Expected<std::vector<std::int64_t>> numbers();
  /// Takes `number` for `text`. Returns false: it is used, or the folder has gone.
  Expected<bool> take(std::int64_t number, const std::string& text, std::uint64_t leader);
  Status make(const std::string& folder, const std::string& text);
  Status remove_claim(const std::string& folder);
  void empty_old(const std::vector<std::int64_t>& numbers, std::int64_t newest);
  std::string path(std::int64_t number) const;
  Status named(const Status& status) const { return status.in(name()); }

  Storage& storage_;
  const Clock& clock_;
  std::string dir_;
  std::int64_t own_ = 0;   ///< the number of this process's last claim; 0: none
  std::int64_t made_ = 0;  ///< folders of claims, for their names
};

}  // namespace troupe::runtime
