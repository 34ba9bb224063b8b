#include "apps/report/trace_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "apps/report/json_text.h"

namespace troupe::report {
namespace {

/// Nanoseconds as the microseconds of the format, exactly.
std::string us(std::int64_t ns) {
  const char* sign = ns < 0 ? "-" : "";
  const auto magnitude = static_cast<std::uint64_t>(ns < 0 ? -ns : ns);
  return fmt::format("{}{}.{:03}", sign, magnitude / 1000, magnitude % 1000);
}

/// Where a file is written that is to be there when it is whole: a device or a pipe is written itself.
std::string while_written(const std::string& path) {
  std::error_code error;
  const auto there = std::filesystem::status(path, error);
  return std::filesystem::exists(there) && !std::filesystem::is_regular_file(there) ? path : path + ".part";
}

}  // namespace

Expected<TraceJsonWriter> TraceJsonWriter::open(const std::string& path, std::int64_t origin_ns) {
  std::FILE* file = std::fopen(while_written(path).c_str(), "wb");
  if (!file) return Status(Code::io, fmt::format("cannot open '{}': {}", path, std::strerror(errno)));
  return TraceJsonWriter(file, path, origin_ns);
}

TraceJsonWriter::TraceJsonWriter(std::FILE* file, std::string path, std::int64_t origin_ns)
    : file_(file), path_(std::move(path)), origin_ns_(origin_ns) {
  std::fputs("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n", file_);
}

TraceJsonWriter::TraceJsonWriter(TraceJsonWriter&& other) noexcept
    : file_(std::exchange(other.file_, nullptr)), path_(std::move(other.path_)), origin_ns_(other.origin_ns_),
      first_(other.first_), rows_(std::move(other.rows_)), spans_(std::move(other.spans_)) {}

TraceJsonWriter::~TraceJsonWriter() {
  if (file_) (void)close();
}

void TraceJsonWriter::event(const std::string& text) {
  if (!std::exchange(first_, false)) std::fputs(",\n", file_);
  std::fputs(text.c_str(), file_);
}

void TraceJsonWriter::name_worker(int worker, const std::string& name) {
  event(fmt::format("{{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": {}, \"args\": {{\"name\": {}}}}}", worker,
                    json_text(name)));
  event(
      fmt::format("{{\"ph\": \"M\", \"name\": \"process_sort_index\", \"pid\": {}, \"args\": {{\"sort_index\": {}}}}}",
                  worker, worker));
}

int TraceJsonWriter::row_of(int worker, const std::string& row) {
  auto& rows = rows_[worker];
  const auto [entry, is_new] = rows.try_emplace(row, static_cast<int>(rows.size()) + 1);
  if (is_new) {
    event(fmt::format(
        "{{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": {}, \"tid\": {}, \"args\": {{\"name\": {}}}}}", worker,
        entry->second, json_text(row)));
    event(
        fmt::format("{{\"ph\": \"M\", \"name\": \"thread_sort_index\", \"pid\": {}, \"tid\": {}, \"args\": "
                    "{{\"sort_index\": {}}}}}",
                    worker, entry->second, entry->second));
  }
  return entry->second;
}

void TraceJsonWriter::add(int worker, const std::vector<TraceSpan>& spans) {
  if (spans_.size() <= static_cast<std::size_t>(worker)) spans_.resize(static_cast<std::size_t>(worker) + 1);
  auto& all = spans_[static_cast<std::size_t>(worker)];
  all.insert(all.end(), spans.begin(), spans.end());
}

int TraceJsonWriter::slice(const TraceSlice& s, const char* category, const std::string& row, std::int64_t begin_ns,
                           std::int64_t end_ns) {
  const int tid = row_of(s.worker, row);
  const auto microbatch = s.span->microbatch < 0 ? "" : fmt::format(", \"microbatch\": {}", s.span->microbatch);
  event(
      fmt::format("{{\"ph\": \"X\", \"name\": {}, \"cat\": \"{}\", \"pid\": {}, \"tid\": {}, \"ts\": {}, \"dur\": {}, "
                  "\"args\": {{\"step\": {}{}}}}}",
                  json_text(s.span->name), category, s.worker, tid, us(begin_ns - origin_ns_), us(end_ns - begin_ns),
                  s.span->step, microbatch));
  return tid;
}

void TraceJsonWriter::write_spans() {
  const TracePicture picture = arrange(spans_);
  const auto track = [](int number) { return number == 0 ? "" : fmt::format(" ({})", number + 1); };
  std::vector<int> rows;
  for (const auto& s : picture.slices) {
    rows.push_back(slice(s, "act", s.span->row + track(s.track), s.work_ns, s.end_ns));
    if (s.waits()) slice(s, "wait", s.span->row + ": waits" + track(s.wait_track), s.span->begin_ns, s.work_ns);
  }
  std::uint64_t id = 0;
  for (const auto& a : picture.arrows) {
    ++id;
    const auto end = [&](const char* phase, std::size_t at, std::int64_t time_ns, const char* bind) {
      event(fmt::format(
          "{{\"ph\": \"{}\", \"name\": \"message\", \"cat\": \"message\", \"id\": {}, \"pid\": {}, \"tid\": {}, "
          "\"ts\": {}{}}}",
          phase, id, picture.slices[at].worker, rows[at], us(time_ns - origin_ns_), bind));
    };
    end("s", a.from, a.from_ns, "");
    end("f", a.to, a.to_ns, ", \"bp\": \"e\"");
  }
}

Status TraceJsonWriter::close() {
  std::FILE* file = std::exchange(file_, nullptr);
  if (!file) return {};
  file_ = file;
  write_spans();
  file_ = nullptr;
  std::fputs("\n]}\n", file);
  const bool failed = std::ferror(file) != 0;
  const std::string written = while_written(path_);
  const bool in_place = written == path_;
  if (std::fclose(file) == 0 && !failed && (in_place || std::rename(written.c_str(), path_.c_str()) == 0)) return {};
  const Status status(Code::io, fmt::format("cannot write '{}': {}", path_, std::strerror(errno)));
  if (!in_place) std::remove(written.c_str());
  return status;
}

}  // namespace troupe::report
