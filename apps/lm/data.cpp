#include "apps/lm/data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "apps/lm/permutation.h"
#include "checkpoint/checksum.h"
#include "devices/base/check.h"
#include "devices/base/philox.h"

namespace troupe::lm {
namespace {

std::int64_t eval_bytes_of(std::int64_t bytes, double fraction) {
  return static_cast<std::int64_t>(std::floor(static_cast<double>(bytes) * fraction));
}

/// Windows side by side in a part. Training has one fewer than fit: its bytes are room for the epoch's offset.
std::int64_t train_windows_of(std::int64_t bytes, std::int64_t seq) {
  return std::max<std::int64_t>(0, (bytes - seq) / seq);
}
std::int64_t eval_windows_of(std::int64_t bytes, std::int64_t seq) {
  return std::max<std::int64_t>(0, (bytes - 1) / seq);
}

bool long_enough(std::int64_t bytes, std::int64_t seq, double fraction, bool evaluates) {
  const auto eval = eval_bytes_of(bytes, fraction);
  return train_windows_of(bytes - eval, seq) >= 2 && (fraction == 0 || !evaluates || eval_windows_of(eval, seq) >= 2);
}

/// What to set where a text is too short: a fraction with which it is long enough, if there is one.
std::string remedy(std::int64_t bytes, const CorpusOptions& o) {
  const std::string shorter = "a longer text or a smaller model.seq will do";
  if (!o.evaluates) return shorter;
  if (long_enough(bytes, o.seq, o.eval_fraction, false)) {
    const double fraction = std::ceil(static_cast<double>(2 * o.seq + 1) / static_cast<double>(bytes) * 100) / 100;
    if (fraction <= 0.5 && long_enough(bytes, o.seq, fraction, true))
      return fmt::format("{}, or eval.fraction={:g}, or eval.every=0", shorter, fraction);
    return shorter + ", or eval.every=0";
  }
  return shorter;
}

}  // namespace

CorpusOptions corpus_options(const LmConfig& config, const std::string& path) {
  return {path, config.model.seq, config.eval.fraction, config.run.seed, config.model.vocab, config.eval.every > 0};
}

std::int64_t corpus_bytes_min(std::int64_t seq, double fraction, bool evaluates) {
  std::int64_t lo = 0, hi = 3 * seq + 1;  // lo is too short, hi is long enough
  while (!long_enough(hi, seq, fraction, evaluates) && hi < std::int64_t{1} << 60) {
    lo = hi;
    hi *= 2;
  }
  while (hi - lo > 1) {
    const auto middle = lo + (hi - lo) / 2;
    (long_enough(middle, seq, fraction, evaluates) ? hi : lo) = middle;
  }
  return hi;
}

Expected<Corpus> Corpus::open(const CorpusOptions& options, const GiveUp& give_up) {
  REQUIRE(options.seq >= 1 && options.eval_fraction >= 0 && options.eval_fraction <= 0.5, options.seq,
          options.eval_fraction);
  TROUPE_ASSIGN(TextFile file, TextFile::open(options.path));
  const std::string& name = options.name.empty() ? options.path : options.name;
  if (options.whole && file.size() < 2)
    return invalid(fmt::format(
        "data file '{}' is too short: it has one byte, and a token is predicted from those before it: name a text of "
        "at least 2 bytes",
        name));
  if (!options.whole && !long_enough(file.size(), options.seq, options.eval_fraction, options.evaluates))
    return invalid(fmt::format(
        "data file '{}' is too short: {} bytes, but sequences of {} with the last {:g}% held out "
        "for evaluation need at least {} bytes (two windows in each part that is read): {}",
        name, file.size(), options.seq, options.eval_fraction * 100,
        corpus_bytes_min(options.seq, options.eval_fraction, options.evaluates), remedy(file.size(), options)));
  if (options.vocab < 256) {
    std::vector<std::uint8_t> block(std::size_t{1} << 20);
    for (std::int64_t at = 0; at < file.size(); at += std::ssize(block)) {
      TROUPE_TRY(give_up());
      block.resize(static_cast<std::size_t>(std::min(std::ssize(block), file.size() - at)));
      TROUPE_TRY(file.read(at, std::ssize(block), block.data()));
      const auto bad = std::find_if(block.begin(), block.end(), [&](std::uint8_t b) { return b >= options.vocab; });
      if (bad != block.end())
        return invalid(
            fmt::format("data file '{}' holds byte {} at offset {}, but 'model.vocab' is only {} (256 fits all)", name,
                        *bad, at + (bad - block.begin()), options.vocab));
    }
  }
  return Corpus(std::move(file), options);
}

Corpus::Corpus(TextFile file, const CorpusOptions& options)
    : file_(std::move(file)), seq_(options.seq),
      train_key_(philox_key(static_cast<std::uint64_t>(options.seed), "data.train")),
      offset_key_(philox_key(static_cast<std::uint64_t>(options.seed), "data.offset")) {
  train_bytes_ = file_.size() - eval_bytes_of(file_.size(), options.eval_fraction);
  train_windows_ = train_windows_of(train_bytes_, seq_);
  eval_windows_ = eval_windows_of(file_.size() - train_bytes_, seq_);
}

std::int64_t Corpus::train_position(std::int64_t index) const {
  REQUIRE(index >= 0, index);
  const auto epoch = static_cast<std::uint64_t>(index / train_windows_);
  const auto window = Permutation(train_windows_, train_key_, epoch)(index % train_windows_);
  const auto spare = train_bytes_ - (train_windows_ * seq_ + 1);  // in [seq - 1, 2 seq - 2]
  const Philox4 random = philox(offset_key_, epoch, 0);
  const auto offset = (std::uint64_t{random[0]} << 32 | random[1]) % static_cast<std::uint64_t>(spare + 1);
  return static_cast<std::int64_t>(offset) + window * seq_;
}

std::int64_t Corpus::eval_position(std::int64_t index) const {
  REQUIRE(index >= 0 && eval_windows_ > 0, index, eval_windows_);
  static const std::uint64_t key = philox_key(0, "data.eval");
  return train_bytes_ + Permutation(eval_windows_, key, 0)(index % eval_windows_) * seq_;
}

Status Corpus::read(std::int64_t position, std::int64_t tokens, std::int32_t* inputs, std::int32_t* targets) const {
  ASSERT(0 <= position && position + tokens < file_.size(), position, tokens, file_.size());
  std::vector<std::uint8_t> window(static_cast<std::size_t>(tokens + 1));
  TROUPE_TRY(file_.read(position, tokens + 1, window.data()));
  std::copy(window.begin(), window.end() - 1, inputs);
  std::copy(window.begin() + 1, window.end(), targets);
  return {};
}

Status Corpus::train_sample(std::int64_t index, std::int32_t* inputs, std::int32_t* targets) const {
  return read(train_position(index), seq_, inputs, targets);
}

Status Corpus::eval_sample(std::int64_t index, std::int32_t* inputs, std::int32_t* targets) const {
  return read(eval_position(index), seq_, inputs, targets);
}

Status Corpus::text_sample(std::int64_t index, std::int32_t* inputs, std::int32_t* targets) const {
  REQUIRE(index >= 0, index);
  std::fill_n(inputs, seq_, 0);
  std::fill_n(targets, seq_, -1);
  if (index >= text_windows()) return {};
  const auto position = index * seq_;
  return read(position, std::min(seq_, text_targets() - position), inputs, targets);
}

Expected<std::string> Corpus::fingerprint() const {
  constexpr std::int64_t pieces = 64, piece = std::int64_t{1} << 20;
  const bool whole = file_.size() <= pieces * piece;
  std::vector<std::byte> bytes(static_cast<std::size_t>(whole ? file_.size() : piece));
  std::vector<checkpoint::Checksum> sums;
  for (std::int64_t i = 0; i < (whole ? 1 : pieces); ++i) {
    TROUPE_TRY(file_.read((file_.size() - std::ssize(bytes)) / (pieces - 1) * i, std::ssize(bytes), bytes.data()));
    sums.push_back(checkpoint::checksum(bytes.data(), std::ssize(bytes)));
  }
  const auto sum = whole ? sums[0]
                         : checkpoint::checksum(reinterpret_cast<const std::byte*>(sums.data()),
                                                static_cast<std::int64_t>(sums.size() * sizeof sums[0]));
  return fmt::format("{}-{}", file_.size(), to_string(sum));
}

}  // namespace troupe::lm
