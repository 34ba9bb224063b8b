#include "apps/lm/gunzip.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe::lm {

namespace {
constexpr int gzip_only = 16 + MAX_WBITS;
}

Gunzip::Gunzip(const TextFile& file, std::string name)
    : file_(file), name_(std::move(name)), packed_(std::size_t{1} << 18) {
  ready_ = ::inflateInit2(&stream_, gzip_only) == Z_OK;
}

Gunzip::~Gunzip() {
  if (ready_) ::inflateEnd(&stream_);
}

Status Gunzip::damaged(const std::string& how) const {
  return invalid(fmt::format("data file '{}' is a damaged gzip file: {}", name_, how));
}

Expected<std::size_t> Gunzip::read(std::span<unsigned char> to) {
  if (!ready_) return Status(Code::exhausted, fmt::format("data file '{}': no memory to unpack it", name_));
  stream_.next_out = to.data();
  stream_.avail_out = static_cast<uInt>(to.size());
  while (stream_.avail_out > 0) {
    TROUPE_TRY(refill());
    if (!in_member_) TROUPE_TRY(skip_padding());
    if (ended() && !in_member_) break;
    if (stream_.avail_in == 0 && !ended()) continue;
    TROUPE_TRY(inflate());
  }
  return to.size() - stream_.avail_out;
}

Status Gunzip::refill() {
  if (stream_.avail_in > 0 || ended()) return {};
  const auto n = std::min(std::ssize(packed_), file_.size() - read_);
  TROUPE_TRY(file_.read(read_, n, packed_.data()));
  read_ += n;
  stream_.next_in = packed_.data();
  stream_.avail_in = static_cast<uInt>(n);
  return {};
}

Status Gunzip::skip_padding() {
  for (; members_ > 0 && stream_.avail_in > 0 && *stream_.next_in == 0; ++stream_.next_in, --stream_.avail_in)
    padded_ = true;
  if (stream_.avail_in == 0) return {};
  if (padded_) return damaged("something follows the zeros at its end");
  in_member_ = true;
  ++members_;
  ::inflateReset(&stream_);
  return {};
}

Status Gunzip::inflate() {
  const bool last = ended();
  const int code = ::inflate(&stream_, Z_NO_FLUSH);
  if (code == Z_STREAM_END) return in_member_ = false, Status();
  if (code == Z_MEM_ERROR) return {Code::exhausted, fmt::format("data file '{}': no memory to unpack it", name_)};
  if (code == Z_BUF_ERROR && last) return damaged("it ends too soon");
  if (code == Z_OK || code == Z_BUF_ERROR) return {};
  const std::string why = stream_.msg ? stream_.msg : "no legal data";
  return damaged(members_ == 1 ? why : fmt::format("what follows its member {}: {}", members_ - 1, why));
}

}  // namespace troupe::lm
