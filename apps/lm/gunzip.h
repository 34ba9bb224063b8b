// The plain bytes of a gzip file, with every byte of it accounted for.
#pragma once

#include <zlib.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "apps/lm/text_file.h"

namespace troupe::lm {

/// Unpacks a gzip file of one member or more. Zeros may follow the last one, as on a tape; zlib's own gzread passes
/// over whatever follows it, a damaged member too.
class Gunzip {
 public:
  /// `name` is what messages call the file, which must live longer than this object.
  Gunzip(const TextFile& file, std::string name);
  ~Gunzip();
  Gunzip(const Gunzip&) = delete;

  /// Fills `to`, which has bytes left over only at the end of the text. Returns how many it has filled. Error: the file
  /// is damaged, or ends too soon; an error of TextFile::read.
  Expected<std::size_t> read(std::span<unsigned char> to);

 private:
  Status refill();
  Status skip_padding();
  Status inflate();
  Status damaged(const std::string& how) const;
  bool ended() const { return stream_.avail_in == 0 && read_ == file_.size(); }

  const TextFile& file_;
  const std::string name_;
  std::vector<unsigned char> packed_;
  std::int64_t read_ = 0;     ///< bytes of the file
  std::int64_t members_ = 0;  ///< begun
  bool in_member_ = false, padded_ = false, ready_ = false;
  z_stream stream_{};
};

}  // namespace troupe::lm
