// A text in plain bytes: a plain file as it is, a gzip or dictzip one (.gz, .dz) unpacked first. Neither a full disk
// nor a signal leaves a partly unpacked file.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "devices/base/give_up.h"
#include "devices/base/status.h"

namespace troupe::lm {

/// The path of a plain file with the text of `path`. A gzip file (.gz, .dz; recognised by its first bytes) is unpacked
/// into `cache_dir` once, under a name that has a checksum of all its bytes: a later call for a file of the same bytes
/// and name, in whatever folder, finds it there. The path of a plain file is returned as it is. For a gzip file,
/// removes partly unpacked files that a killed process has left in `cache_dir`, by their form of name: one process at a
/// time calls it, and gives the result to all workers. Error, after which no partly unpacked file is left: not_found, a
/// file that cannot be read or that changes meanwhile, a damaged or empty one, a packed format that this program does
/// not read; a `cache_dir` that cannot be written, exhausted if the disk is full; what `give_up` returns, which is
/// asked before each block. `of_output`, where it is not null, says whether the error is of `cache_dir`.
Expected<std::string> plain_text_path(const std::string& path, const std::string& cache_dir,
                                      const GiveUp& give_up = never_give_up, bool* of_output = nullptr);

/// The plain bytes of a text, for a command that has no folder to keep them in: a plain file is read where it is; a
/// gzip file is unpacked into a file without a name, which the system removes when no process has it open any more,
/// however the command ends.
class PlainText {
 public:
  /// Error: as plain_text_path; `of_output`: it is of the file without a name.
  static Expected<PlainText> open(const std::string& path, const GiveUp& give_up = never_give_up,
                                  bool* of_output = nullptr);
  /// A path of the bytes, for this process and its children, while this object lives.
  const std::string& path() const { return path_; }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path_;
  std::unique_ptr<std::FILE, Close> unpacked_;  ///< null: the file is plain
};

}  // namespace troupe::lm
