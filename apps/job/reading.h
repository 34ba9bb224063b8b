// A command that reads a checkpoint and writes none: which checkpoint it takes, and what it does with damaged ones.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "apps/job/resume.h"

namespace troupe::lm {

/// Reads a checkpoint. Error `damaged`: its data is damaged, and nothing has been written yet. On another error, `code`
/// is the exit code for it.
using UseCheckpoint = std::function<Status(const Resume& checkpoints, const ResumePoint& point, int& code)>;

/// How often a command looks for the newest checkpoint, where a run removes what it finds before it is read.
inline constexpr int looks_max = 16;

/// Calls `use` with the newest good checkpoint that `find` finds: where `use` returns `damaged`, calls it with the next
/// older one, unless the user named one. A run that saves there may remove a checkpoint at any time (--keep): where the
/// one that was to be read is not there any more, looks for the newest again, looks_max times in all. Returns what
/// `use` returns, or the error of what was not found; `code` is the exit code for an error, `notes` the lines about
/// checkpoints that were passed over, for people. Takes no lock.
Status read_checkpoint(const std::function<Expected<Resume>()>& find, const UseCheckpoint& use, int& code,
                       std::vector<std::string>& notes);

/// The same with the checkpoint that `--from` means: `from` is a checkpoint's folder, or a folder of checkpoints or a
/// run's output folder, of which the newest good one is meant; `step` >= 0: of that step. Prints errors, and what was
/// passed over, to stderr; returns the exit code.
int use_checkpoint(const std::string& from, std::int64_t step, const UseCheckpoint& use);

}  // namespace troupe::lm
