#include "actors/copy.h"

#include "actors/version_word.h"

namespace troupe::actors {

Status CopyBody::run(const ActContext& c, Parallel& par) {
  if (copies_.empty()) return {};
  const std::int32_t slot = newest_ == 0 ? 1 : 0;
  std::byte* to = memory_.base + slot * memory_.slot_bytes;
  VersionWord word(to + memory_.version_offset);
  word.clear();
  copy_runs(copies_, params_.at(c.act.in[0].token.slot), to, par, device_);
  if (par.stopping()) return stopped();
  newest_ = slot;
  par.after([word, version = c.step]() mutable { word.set(version); });
  return {};
}

}  // namespace troupe::actors
