#include "apps/report/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "apps/report/files.h"
#include "apps/report/json_text.h"

namespace troupe::report {
namespace {

std::string number(double value, int digits) {
  return std::isfinite(value) ? fmt::format("{:.{}g}", value, digits) : "null";
}

/// Size of the file up to and including its last newline.
off_t whole_lines(int fd) {
  off_t end = ::lseek(fd, 0, SEEK_END);
  char block[4096];
  while (end > 0) {
    const off_t begin = std::max<off_t>(0, end - static_cast<off_t>(sizeof block));
    const ssize_t n = ::pread(fd, block, static_cast<std::size_t>(end - begin), begin);
    for (ssize_t i = n; i > 0; --i)
      if (block[i - 1] == '\n') return begin + i;
    end = n > 0 ? begin : 0;
  }
  return 0;
}

}  // namespace

std::string to_json_line(const StepMetrics& m) {
  std::string void_step;
  if (!m.void_parameter.empty()) void_step = ", \"void\": " + json_text(m.void_parameter);
  if (!m.void_parameter.empty() && m.void_microbatch >= 0)
    void_step += fmt::format(", \"void_microbatch\": {}", m.void_microbatch);
  const auto samples = m.samples ? fmt::format("[{}, {}]", m.samples->first, m.samples->second) : "null";
  return fmt::format(
      "{{\"step\": {}, \"loss\": {}, \"grad_norm\": {}, \"lr\": {}, \"tokens\": {}, \"samples\": {}, \"tokens_per_s\": "
      "{}, "
      "\"step_ms\": {}, \"exposed_comm_ms\": {}, \"generation\": {}{}}}\n",
      m.step, number(m.loss, 17), number(m.grad_norm, 17), number(m.lr, 17), m.tokens, samples,
      number(m.tokens_per_s, 6), number(m.step_ms, 6), number(m.exposed_comm_ms, 6), m.generation, void_step);
}

std::string to_json_line(const EvalMetrics& m) {
  return fmt::format("{{\"step\": {}, \"eval_loss\": {}, \"tokens\": {}, \"eval_ms\": {}, \"generation\": {}}}\n",
                     m.step, number(m.eval_loss, 17), m.tokens, number(m.eval_ms, 6), m.generation);
}

std::string to_json_line(const CheckpointMetrics& m) {
  const auto why = m.why.empty() ? "" : ", \"why\": " + json_text(m.why);
  const auto saved = m.what != "saved" && m.what != "saving"
                         ? ""
                         : fmt::format(
                               ", \"parameter_bytes\": {}, \"moment_bytes\": {}, \"stall_ms\": {}, \"save_ms\": {}",
                               m.parameter_bytes, m.moment_bytes, number(m.stall_ms, 6), number(m.save_ms, 6));
  return fmt::format("{{\"step\": {}, \"checkpoint\": \"{}\"{}{}, \"generation\": {}}}\n", m.step, m.what, saved, why,
                     m.generation);
}

std::string to_json_line(const IncidentMetrics& m) {
  std::string times;
  const auto add = [&](const char* name, double ms) {
    if (ms >= 0) times += fmt::format("{}\"{}\": {}", times.empty() ? "" : ", ", name, number(ms, 6));
  };
  add("more_lost", m.more_lost_ms);
  add("left", m.left_ms);
  add("agreed", m.agreed_ms);
  add("ready", m.ready_ms);
  add("act", m.act_ms);
  const auto report = m.report.empty() ? "" : ", \"report\": " + json_text(m.report);
  const auto planned = m.planned ? ", \"planned\": true" : "";
  const auto actor = m.actor.empty() ? "" : ", \"actor\": " + json_text(m.actor);
  const auto goes_on = m.step < 0 ? ", \"ended\": true"
                                  : fmt::format(", \"step\": {}, \"from\": {}, \"generation\": {}{}", m.step,
                                                json_text(m.from), m.generation, m.ends ? ", \"ends\": true" : "");
  std::vector<std::string> others;
  for (const std::string& other : m.others) others.push_back(json_text(other));
  std::string mesh = m.mesh.empty() ? "" : ", \"mesh\": " + json_text(m.mesh);
  if (!others.empty()) mesh += fmt::format(", \"others\": [{}]", fmt::join(others, ", "));
  const auto moved = m.moved_bytes == 0 ? "" : fmt::format(", \"moved_bytes\": {}", m.moved_bytes);
  return fmt::format(
      "{{\"at_s\": {}, \"cause\": {}{}, \"culprit\": {}{}, \"lost\": [{}], \"committed\": {}{}{}{}, "
      "\"ms\": {{{}}}{}}}\n",
      number(m.at_s, 6), json_text(m.cause), planned, m.culprit, actor, fmt::join(m.lost, ", "), m.committed, goes_on,
      mesh, moved, times, report);
}

std::string to_json_line(const StragglerMetrics& m) {
  return fmt::format("{{\"at_s\": {}, \"straggler\": {}, \"times\": {}, \"step\": {}{}}}\n", number(m.at_s, 6),
                     m.worker, number(m.times, 3), m.step, m.over ? ", \"over\": true" : "");
}

Expected<MetricsBefore> read_lines_before(const std::string& path, std::int64_t step) {
  MetricsBefore out;
  std::error_code none;
  if (std::filesystem::is_fifo(path, none) || std::filesystem::is_character_file(path, none))  // it may never end
    return Status(Code::io, fmt::format("'{}' is no regular file: remove it, or choose another --out", path));
  std::ifstream file(path);
  if (!file) return out;
  std::int64_t number = 0, damaged = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (damaged > 0) out.damaged.push_back(std::exchange(damaged, 0));
    const auto json = nlohmann::json::parse(line, nullptr, false);
    // Skips half a line at the end.
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) {
      damaged = number;
      continue;
    }
    // A checkpoint's line has the number of steps done: lines of the version from which the run goes on stay.
    const auto at = json["step"].get<std::int64_t>();
    if (at >= step + (json.contains("checkpoint") ? 1 : 0)) continue;
    out.lines += line + "\n";
    for (const auto& [key, curve] : {std::pair("loss", &out.train), std::pair("eval_loss", &out.eval)})
      if (json.contains(key) && json[key].is_number())
        curve->push_back({static_cast<double>(at), json[key].get<double>()});
  }
  return out;
}

Expected<MetricsWriter> MetricsWriter::open(const std::string& path, Mode mode) {
  const int truncate = mode == Mode::fresh ? O_TRUNC : 0;
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | truncate, 0644);
  if (fd < 0) return Status(Code::io, fmt::format("cannot open '{}': {}", path, std::strerror(errno)));
  MetricsWriter writer(fd, path);
  struct stat info {};
  writer.linked_ = ::fstat(fd, &info) == 0 && info.st_nlink > 0;  // some file systems count none
  if (::ftruncate(fd, whole_lines(fd)) != 0)
    return Status(Code::io, fmt::format("cannot write '{}': {}", path, std::strerror(errno)));
  return writer;
}

MetricsWriter::MetricsWriter(MetricsWriter&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), path_(std::move(other.path_)), written_(other.written_),
      linked_(other.linked_) {}

MetricsWriter::~MetricsWriter() {
  if (fd_ >= 0) ::close(fd_);
}

Status MetricsWriter::in_place() {
  struct stat written {
  }, there{};
  if (::fstat(fd_, &written) != 0 || !S_ISREG(written.st_mode)) return {};
  const bool found = ::stat(path_.c_str(), &there) == 0;
  // What else a file system says may pass.
  const bool gone = found ? written.st_dev != there.st_dev || written.st_ino != there.st_ino : errno == ENOENT;
  if (!std::exchange(seems_gone_, gone) || !gone) return {};
  return Status(Code::io, fmt::format("'{}' was moved or replaced while the run wrote it", path_));
}

Status MetricsWriter::write_line(std::string_view line) {
  struct stat before {};
  if (::fstat(fd_, &before) == 0 && S_ISREG(before.st_mode)) {
    const bool removed = linked_ && before.st_nlink == 0;
    if (removed || before.st_size < written_)
      return Status(Code::io, fmt::format("'{}' was {} while the run wrote it", path_, removed ? "removed" : "cut"));
  }
  std::size_t done = 0;
  int error = 0;
  while (done < line.size() && error == 0) {
    const ssize_t n = ::write(fd_, line.data() + done, line.size() - done);
    if (n > 0) done += static_cast<std::size_t>(n);  // not all: the file cannot grow, and the next call says why
    else if (n == 0 || errno != EINTR) error = n == 0 ? EIO : errno;
  }
  if (error == 0) return written_ = before.st_size + static_cast<off_t>(line.size()), Status();
  if (done > 0) {
    struct stat info {};
    if (::fstat(fd_, &info) != 0 || ::ftruncate(fd_, info.st_size - static_cast<off_t>(done)) != 0)
      return Status(Code::io, fmt::format("'{}' ends in half a line: {}", path_, std::strerror(error)));
  }
  return Status(error == ENOSPC ? Code::exhausted : Code::io,
                fmt::format("cannot write '{}': {}", path_, std::strerror(error)));
}

}  // namespace troupe::report
