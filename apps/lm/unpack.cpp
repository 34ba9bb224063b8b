#include "apps/lm/unpack.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string_view>
#include <system_error>
#include <vector>

#include "apps/lm/gunzip.h"
#include "apps/lm/text_file.h"
#include "checkpoint/checksum.h"

namespace troupe::lm {
namespace {

/// Returns the name of a packed format that this program does not read; null for any other file.
const char* packed_as(const unsigned char* head, std::size_t bytes) {
  struct Format {
    const char* name;
    std::string_view magic;
  };
  static constexpr Format formats[] = {{"xz",
                                        "\xfd"
                                        "7zXZ"},
                                       {"zstd", "\x28\xb5\x2f\xfd"},
                                       {"bzip2", "BZh"},
                                       {"zip", "PK\x03\x04"},
                                       {"7z", "7z\xbc\xaf"}};
  const std::string_view text(reinterpret_cast<const char*>(head), bytes);
  for (const auto& f : formats)
    if (text.starts_with(f.magic)) return f.name;
  return nullptr;
}

/// Whether a text is packed with gzip. Error: it cannot be read, or is packed in another way.
Expected<bool> is_gzip(const std::string& path) {
  TROUPE_ASSIGN(const TextFile file, TextFile::open(path));
  unsigned char magic[6] = {};
  const std::size_t n = file.read_head(sizeof magic, magic);
  if (const char* format = packed_as(magic, n))
    return invalid(fmt::format("data file '{}' is packed with {}: unpack it first; plain text, .gz and .dz are read",
                               path, format));
  return n >= 2 && magic[0] == 0x1f && magic[1] == 0x8b;
}

/// The error of what is written, of errno. Sets `of_output`.
Status cannot_unpack(const std::string& from, const std::string& to, bool& of_output) {
  of_output = true;
  return {errno == ENOSPC || errno == EDQUOT ? Code::exhausted : Code::io,
          fmt::format("cannot unpack '{}' to '{}': {}", from, to, std::strerror(errno))};
}

/// Unpacks `source`, whose path is `from`, into `out`, which messages call `to`. Sets `of_output` at an error of what
/// is written. Error as well: the text is empty.
Status unpack_into(const TextFile& source, const std::string& from, std::FILE* out, const std::string& to,
                   const GiveUp& give_up, bool& of_output) {
  Gunzip in(source, from);
  std::vector<unsigned char> block(1 << 20);
  for (bool any = false;; any = true) {
    TROUPE_TRY(give_up());
    TROUPE_ASSIGN(const std::size_t n, in.read(block));
    if (n == 0 && !any) return invalid(fmt::format("data file '{}' is empty: it unpacks to no byte", from));
    if (n == 0) break;
    if (std::fwrite(block.data(), 1, n, out) != n) return cannot_unpack(from, to, of_output);
  }
  return std::fflush(out) == 0 ? Status() : cannot_unpack(from, to, of_output);
}

/// A checksum of all bytes of the file: of the checksums of its blocks.
Expected<checkpoint::Checksum> checksum_of(const TextFile& file, const GiveUp& give_up) {
  std::vector<std::byte> block(static_cast<std::size_t>(checkpoint::block_bytes));
  std::vector<checkpoint::Checksum> sums;
  for (std::int64_t at = 0; at < file.size(); at += std::ssize(block)) {
    TROUPE_TRY(give_up());
    block.resize(static_cast<std::size_t>(std::min(std::ssize(block), file.size() - at)));
    TROUPE_TRY(file.read(at, std::ssize(block), block.data()));
    sums.push_back(checkpoint::checksum(block.data(), std::ssize(block)));
  }
  return checkpoint::checksum(reinterpret_cast<const std::byte*>(sums.data()),
                              static_cast<std::int64_t>(sums.size() * sizeof sums[0]));
}

Status unpack(const TextFile& source, const std::string& from, const std::string& to, const GiveUp& give_up,
              bool& of_output) {
  std::FILE* out = std::fopen(to.c_str(), "wb");
  if (!out) return cannot_unpack(from, to, of_output);
  Status status = unpack_into(source, from, out, to, give_up, of_output);
  // A later call trusts that a file of this name is whole.
  if (status.ok() && ::fsync(fileno(out)) != 0) status = cannot_unpack(from, to, of_output);
  if (std::fclose(out) != 0 && status.ok()) status = cannot_unpack(from, to, of_output);
  return status;
}

bool all_of_form(std::string_view text, std::string_view digits) {
  return !text.empty() && text.find_first_not_of(digits) == std::string_view::npos;
}

/// Whether a file's name is one that this program unpacks to: "NAME-CHECKSUM.txt.PID.part".
bool is_part(std::string_view name) {
  constexpr std::string_view end = ".part", middle = ".txt.";
  if (!name.ends_with(end)) return false;
  name.remove_suffix(end.size());
  const auto at = name.rfind(middle);
  if (at == std::string_view::npos || !all_of_form(name.substr(at + middle.size()), "0123456789")) return false;
  name = name.substr(0, at);
  const auto dash = name.rfind('-');
  const std::size_t digits = to_string(checkpoint::Checksum{}).size();
  return dash != std::string_view::npos && name.size() - dash - 1 == digits &&
         all_of_form(name.substr(dash + 1), "0123456789abcdef");
}

/// Removes what a command has left that was killed while it unpacked.
void remove_parts(const std::string& cache_dir) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<fs::path> parts;
  for (fs::directory_iterator at(cache_dir, error), end; !error && at != end; at.increment(error))
    if (is_part(at->path().filename().string())) parts.push_back(at->path());
  for (const auto& part : parts) fs::remove(part, error);
}

}  // namespace

Expected<std::string> plain_text_path(const std::string& path, const std::string& cache_dir, const GiveUp& give_up,
                                      bool* of_output) {
  bool unasked = false;
  bool& of_cache = of_output ? *of_output : unasked;
  of_cache = false;
  TROUPE_ASSIGN(const bool packed, is_gzip(path));
  if (!packed) return path;
  remove_parts(cache_dir);

  namespace fs = std::filesystem;
  std::error_code error;
  fs::create_directories(cache_dir, error);
  if (error) {
    of_cache = true;
    const bool full = error == std::errc::no_space_on_device || error.value() == EDQUOT;
    return Status(full ? Code::exhausted : Code::io, fmt::format("cannot create '{}': {}", cache_dir, error.message()));
  }
  TROUPE_ASSIGN(const TextFile source, TextFile::open(path));
  TROUPE_ASSIGN(const checkpoint::Checksum sum, checksum_of(source, give_up));
  // The name is for people: a long one leaves no room for what is added to it.
  const std::string name = fs::path(path).stem().string().substr(0, 100);
  const std::string plain = fmt::format("{}/{}-{}.txt", cache_dir, name, to_string(sum));
  if (fs::is_regular_file(plain, error) && fs::file_size(plain, error) > 0) return plain;
  const std::string part = fmt::format("{}.{}.part", plain, ::getpid());
  Status status = unpack(source, path, part, give_up, of_cache);
  if (status.ok()) status = source.in_place();  // what was unpacked is what the name has the checksum of
  if (status.ok() && ::rename(part.c_str(), plain.c_str()) != 0) status = cannot_unpack(path, plain, of_cache);
  if (!status.ok()) {
    fs::remove(part, error);
    return status;
  }
  return plain;
}

Expected<PlainText> PlainText::open(const std::string& path, const GiveUp& give_up, bool* of_output) {
  bool unasked = false;
  bool& of_unpacked = of_output ? *of_output : unasked;
  of_unpacked = false;
  PlainText out;
  out.path_ = path;
  TROUPE_ASSIGN(const bool packed, is_gzip(path));
  if (!packed) return out;
  TROUPE_ASSIGN(const TextFile source, TextFile::open(path));
  out.unpacked_.reset(std::tmpfile());
  if (!out.unpacked_) return cannot_unpack(path, P_tmpdir, of_unpacked);
  const int fd = fileno(out.unpacked_.get());
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);  // workers open it by its path
  TROUPE_TRY(unpack_into(source, path, out.unpacked_.get(), P_tmpdir, give_up, of_unpacked));
  TROUPE_TRY(source.in_place());  // what was unpacked is one text, not parts of two
  out.path_ = fmt::format("/proc/{}/fd/{}", ::getpid(), fd);
  return out;
}

}  // namespace troupe::lm
