#include "runtime/store/file_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <span>
#include <thread>

#include "checkpoint/checksum.h"
#include "runtime/store/claim_text.h"

namespace troupe::runtime {

namespace {

constexpr const char* claim_file = "/claim";
constexpr std::string_view withdrawn = "withdrawn\n";
constexpr std::size_t number_digits = 8;
/// Claims whose text stays, with the newest.
constexpr std::size_t texts_kept = 4;
constexpr std::int64_t look_every_ms = 200;

/// 0: no number of a claim.
std::int64_t number_of(const DirEntry& entry) {
  std::int64_t number = 0;
  const char* end = entry.name.data() + entry.name.size();
  const auto [at, error] = std::from_chars(entry.name.data(), end, number);
  return entry.folder && entry.name.size() >= number_digits && error == std::errc() && at == end ? number : 0;
}

/// A claim that another process changes meanwhile, or that a crash has left in parts, is one that cannot be read.
bool is_of_the_claim(Code code) { return code == Code::not_found || code == Code::damaged || code == Code::exhausted; }

}  // namespace

bool FileStore::Content::has(std::int64_t number) const {
  return std::binary_search(numbers.begin(), numbers.end(), number);
}

std::string FileStore::path(std::int64_t number) const { return fmt::format("{}/{:08}", dir_, number); }

Expected<std::vector<std::int64_t>> FileStore::numbers() {
  std::vector<std::int64_t> all;
  const auto entries = storage_.list(dir_);
  if (entries.status().code() == Code::not_found) return all;
  if (!entries.ok()) return entries.status();
  for (const auto& entry : *entries)
    if (const auto number = number_of(entry); number > 0) all.push_back(number);
  std::sort(all.begin(), all.end());
  return all;
}

Expected<FileStore::Content> FileStore::look() {
  Content content;
  TROUPE_ASSIGN(content.numbers, numbers());
  for (auto number = content.numbers.rbegin(); number != content.numbers.rend(); ++number) {
    const auto bytes = read_file(storage_, path(*number) + claim_file);
    if (!bytes.ok()) {
      if (!is_of_the_claim(bytes.status().code())) return bytes.status();
      continue;
    }
    const std::string_view text(reinterpret_cast<const char*>(bytes->data()), bytes->size());
    if (text == withdrawn) break;  // FM-4 (withdrawn)
    auto claim = read_claim_text(text);
    // A claim of another program's is no claim that has died: to take the next number would supersede it unread.
    if (!claim.ok() && !is_of_the_claim(claim.status().code()))
      return Status(claim.status().code(), fmt::format("{}: {}: if no process leads the run, remove this folder",
                                                       path(*number), claim.status().message()));
    if (!claim.ok()) continue;
    content.newest = StoredClaim{.claim = *std::move(claim), .revision = *number};
    break;
  }
  return content;
}

Expected<std::optional<StoredClaim>> FileStore::read() {
  auto content = look();
  if (!content.ok()) return named(content.status());
  return std::move(content->newest);
}

Status FileStore::make(const std::string& folder, const std::string& text) {
  TROUPE_TRY(storage_.make_dir(folder));
  return write_file(storage_, folder + claim_file, std::as_bytes(std::span(text)));  // synced, as the folder is
}

Status FileStore::remove_claim(const std::string& folder) {
  const auto files = storage_.list(folder);
  if (files.status().code() == Code::not_found) return {};
  if (!files.ok()) return files.status();
  for (const auto& file : *files)
    if (const Status s = storage_.remove(folder + "/" + file.name); !s.ok() && s.code() != Code::not_found) return s;
  const Status s = storage_.remove(folder);
  return s.code() == Code::not_found ? Status() : s;
}

Expected<bool> FileStore::take(std::int64_t number, const std::string& text, std::uint64_t leader) {
  const std::string made = fmt::format("{}/new-{}-{}", dir_, checkpoint::hexadecimal(leader), ++made_);
  Status status = make(made, text);
  if (status.ok()) status = storage_.rename(made, path(number));  // FM-1 (exclusive)
  if (!status.ok()) {
    (void)remove_claim(made);  // best effort: withdraw() removes it otherwise
    TROUPE_ASSIGN(const auto there, numbers());
    const bool used = std::binary_search(there.begin(), there.end(), number);
    if (used || status.code() == Code::not_found) return false;
    return status;
  }
  TROUPE_TRY(storage_.sync_dir(dir_));
  return true;
}

Expected<std::optional<std::int64_t>> FileStore::advance(std::int64_t expected, const Claim& next, bool takes_lead) {
  TROUPE_TRY(check_claim(next));
  const auto tried = [&]() -> Expected<std::optional<std::int64_t>> {
    std::optional<std::int64_t> lost;
    TROUPE_ASSIGN(const Content before, look());
    const std::int64_t newest = before.newest ? before.newest->revision : 0;
    if (newest != expected) {
      if (newest < expected || before.newest->claim != next) return lost;
      TROUPE_TRY(storage_.sync_dir(dir_));  // an earlier call may have ended before it
      own_ = newest;
      return std::optional(newest);
    }
    if (!takes_lead && (!before.newest || before.newest->claim.leader != next.leader)) return lost;
    if (expected == 0) TROUPE_TRY(make_durable_dir(storage_, dir_));
    const std::int64_t mine = before.last() + 1;
    TROUPE_ASSIGN(const bool taken, take(mine, write_claim_text(next), next.leader));
    if (!taken) return lost;
    // Where the job was withdrawn meanwhile, and the numbers removed, mine follows nothing.
    TROUPE_ASSIGN(const auto after, numbers());
    const auto follows = expected > 0 ? expected : before.last();
    if (follows > 0 && !std::binary_search(after.begin(), after.end(), follows)) {
      TROUPE_TRY(remove_claim(path(mine)));
      TROUPE_TRY(storage_.sync_dir(dir_));
      return lost;
    }
    own_ = mine;
    empty_old(before.numbers, mine);
    return std::optional(mine);
  }();
  return tried.ok() ? tried : named(tried.status());
}

/// Empties the text of all but a few of `numbers` (FM-2 used). What cannot be emptied stays: it only takes room.
void FileStore::empty_old(const std::vector<std::int64_t>& numbers, std::int64_t newest) {
  if (numbers.size() < texts_kept) return;
  // Each claim empties one; after a claim that died more may be left.
  const auto end = numbers.end() - (texts_kept - 1);
  for (auto number = end - std::min<std::ptrdiff_t>(end - numbers.begin(), 4); number != end; ++number)
    if (const std::string file = path(*number) + claim_file; *number < newest)
      (void)write_file(storage_, file, {}, Durability::not_synced, fmt::format(".empty-{}", newest));
}

Expected<bool> FileStore::keep_lead() {
  if (own_ == 0) return false;
  const auto content = look();
  if (!content.ok()) return named(content.status());
  return content->newest && content->newest->revision == own_;
}

Status FileStore::wait_for_change(std::int64_t revision, std::int64_t most_ms) {
  const std::int64_t until = clock_.now_ns() + most_ms * 1'000'000;
  for (;;) {
    const auto content = look();
    if (!content.ok()) return named(content.status());
    if ((content->newest ? content->newest->revision : 0) != revision) return {};
    const std::int64_t left = (until - clock_.now_ns()) / 1'000'000;
    if (left <= 0) return {};
    std::this_thread::sleep_for(std::chrono::milliseconds(std::min(left, look_every_ms)));
  }
}

Status FileStore::withdraw() {
  const Status done = [&]() -> Status {
    TROUPE_ASSIGN(const Content content, look());
    if (content.newest) {
      if (content.newest->revision != own_)
        return {Code::superseded, fmt::format("generation {} of job {}, of another process, is there",
                                              content.newest->claim.generation.number,
                                              checkpoint::hexadecimal(content.newest->claim.generation.job))};
      TROUPE_ASSIGN(const bool taken, take(content.last() + 1, std::string(withdrawn), content.newest->claim.leader));
      if (!taken) return {Code::superseded, "another process has claimed the job at the same moment"};
    } else if (own_ == 0) {
      return {};
    }
    own_ = 0;
    const auto entries = storage_.list(dir_);
    if (entries.status().code() == Code::not_found) return {};
    if (!entries.ok()) return entries.status();
    // By name: the numbers in their order, then what is half made; the last number goes when all others have.
    std::string last;
    for (const auto& entry : *entries)
      if (number_of(entry) > 0) last = std::max(last, entry.name);
    for (const auto& entry : *entries)
      if (entry.folder && entry.name != last) TROUPE_TRY(remove_claim(dir_ + "/" + entry.name));
    TROUPE_TRY(storage_.sync_dir(dir_));
    if (!last.empty()) TROUPE_TRY(remove_claim(dir_ + "/" + last));
    (void)storage_.remove(dir_);  // not where a process has begun the job anew meanwhile
    return {};
  }();
  return done.ok() ? done : named(done);
}

}  // namespace troupe::runtime
