#include "apps/job/reading.h"

#include <fmt/format.h>

#include "apps/job/job.h"
#include "devices/base/log.h"
#include "devices/files/file_storage.h"
#include "runtime/elastic/exit_codes.h"

namespace troupe::lm {

using namespace runtime;

Status read_checkpoint(const std::function<Expected<Resume>()>& find, const UseCheckpoint& use, int& code,
                       std::vector<std::string>& notes) {
  std::string dir;
  for (int look = 0; look < looks_max; ++look) {
    code = exit_checkpoint;
    auto found = find();
    if (!found.ok()) return found.status();
    dir = found->dir();
    do {
      code = exit_checkpoint;
      const auto point = found->next();
      if (!point.ok() && found->is_outrun()) break;
      if (!point.ok()) return point.status();
      const Status s = use(*found, *point, code);
      const bool is_of_checkpoint = code == exit_checkpoint || code == exit_worker;
      const bool is_lost = s.code() == Code::not_found && is_of_checkpoint && found->is_outrun();
      if (s.code() != Code::damaged && !is_lost) {
        notes = found->notes();
        return s;
      }
      found->reject(s);  // then tries an older one, unless the user named this checkpoint
    } while (!found->is_outrun());
  }
  code = exit_checkpoint;
  return Status(Code::unavailable,
                fmt::format("the run that saves in '{}' removes checkpoints faster than they are read: {} times the "
                            "newest was gone before it was read; keep more of them (--keep)",
                            dir, looks_max));
}

int use_checkpoint(const std::string& from, std::int64_t step, const UseCheckpoint& use) {
  FileStorage storage;
  const auto find = [&]() -> Expected<Resume> {
    auto found = Resume::find(storage, from);
    if (!found.ok()) return found.status().in("--from");
    if (step >= 0)
      if (const Status s = found->only(step); !s.ok()) return s.in("--step");
    return found;
  };
  int code = exit_ok;
  std::vector<std::string> notes;
  const Status s = read_checkpoint(find, use, code, notes);
  for (const auto& note : notes) log_warn(note);
  return s.ok() ? exit_ok : say(s, code);
}

}  // namespace troupe::lm
