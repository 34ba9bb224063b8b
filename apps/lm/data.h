// Training and evaluation samples from one text: windows of bytes in a keyed random order. Or all of a text, in its own
// order.
//
// A token is a byte. The text's last `eval_fraction` is for evaluation, the rest for training. A sample is a
// window of seq + 1 bytes: inputs are the first seq, targets the last seq. The stream of training samples is
// endless: sample i belongs to epoch i / n and is window permutation(i mod n) of that epoch's n windows, which lie
// side by side from an offset that each epoch draws anew. Nothing is stored: the data cursor is the step.
//
//   DA-1  (epochs) each epoch gives every window exactly once; windows of an epoch share no input byte;
//   DA-2  (pure samples) a sample depends on (file, seq, eval_fraction, seed, index) only: any process, any order, any
//         mesh;
//   DA-3  (two parts) no training window reaches into the evaluation part, and no evaluation window into the training
//         part;
//   DA-4  (every byte) every byte of the training part can be drawn: an epoch leaves out fewer than 2 seq bytes at the
//         two ends, and the offset decides which;
//   DA-5  (whole text) of a text that is read whole every byte but the first is a target once, whatever its length.
#pragma once

#include <cstdint>
#include <string>

#include "apps/lm/text_file.h"
#include "apps/options/config.h"
#include "devices/base/give_up.h"
#include "devices/base/status.h"

namespace troupe::lm {

struct CorpusOptions {
  std::string path;          ///< a plain file (see plain_text_path, unpack.h)
  std::int64_t seq = 0;      ///< tokens per sample
  double eval_fraction = 0;  ///< last part of the text that is held out; 0: none
  std::int64_t seed = 0;
  std::int64_t vocab = 256;  ///< bytes must be below it
  bool evaluates = true;     ///< the held out part is read: it must have two windows
  /// The text is read whole, by text_sample alone: it has no parts, and two bytes will do.
  bool whole = false;
  std::string name;  ///< of the text, in messages; empty: path
};

/// Of a run, which reads the held out part if it evaluates.
CorpusOptions corpus_options(const LmConfig& config, const std::string& path);

/// A text cut into samples. Const and stateless after opening: any thread may draw.
class Corpus {
 public:
  /// Error: a file that cannot be read, is too short (corpus_bytes_min; whole: 2), or has a byte that is no token of
  /// the vocabulary; what `give_up` returns while the bytes are checked.
  static Expected<Corpus> open(const CorpusOptions& options, const GiveUp& give_up = never_give_up);

  /// Training samples per epoch.
  std::int64_t train_windows() const { return train_windows_; }
  /// Evaluation samples; 0 without an evaluation part.
  std::int64_t eval_windows() const { return eval_windows_; }
  /// The text's length and a checksum: of the whole text, or above 64 MiB of 64 pieces of 1 MiB spread over it.
  Expected<std::string> fingerprint() const;
  /// Error: the file has changed since it was opened. Every read of a sample checks the file, too.
  Status unchanged() const { return file_.unchanged(); }
  /// Error: the same, or its path leads to another file now.
  Status in_place() const { return file_.in_place(); }
  std::int64_t train_bytes() const { return train_bytes_; }
  /// Samples and targets of the text as a whole.
  std::int64_t text_windows() const { return (text_targets() + seq_ - 1) / seq_; }
  std::int64_t text_targets() const { return file_.size() - 1; }

  /// Sample `index` >= 0 of the training stream; both arrays hold seq tokens. Error: the file has changed, or cannot be
  /// read.
  Status train_sample(std::int64_t index, std::int32_t* inputs, std::int32_t* targets) const;
  /// Sample `index` >= 0 of the evaluation stream: the windows in one fixed scattered order, the same for every seed
  /// and every evaluation, so that any number of first samples covers the part evenly. After eval_windows() samples the
  /// stream begins again. Error: as train_sample.
  Status eval_sample(std::int64_t index, std::int32_t* inputs, std::int32_t* targets) const;
  /// Sample `index` >= 0 of the text as a whole: its windows side by side, in order. Where the text has ended, inputs
  /// are 0 and targets -1, which counts for nothing. Error: as train_sample.
  Status text_sample(std::int64_t index, std::int32_t* inputs, std::int32_t* targets) const;

  /// First byte of the window that the calls above read.
  std::int64_t train_position(std::int64_t index) const;
  std::int64_t eval_position(std::int64_t index) const;

 private:
  Corpus(TextFile file, const CorpusOptions& options);
  /// A window of so many tokens. REQUIRES: the text has one byte more there.
  Status read(std::int64_t position, std::int64_t tokens, std::int32_t* inputs, std::int32_t* targets) const;

  TextFile file_;
  std::int64_t seq_;
  std::uint64_t train_key_, offset_key_;
  std::int64_t train_bytes_ = 0;
  std::int64_t train_windows_ = 0;
  std::int64_t eval_windows_ = 0;
};

/// The smallest text, in bytes, that gives two windows to the training part and, where a run evaluates, to the held out
/// part.
std::int64_t corpus_bytes_min(std::int64_t seq, double eval_fraction, bool evaluates = true);

}  // namespace troupe::lm
