#include "apps/report/trace_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "apps/report/files.h"
#include "apps/report/json_text.h"

namespace troupe::report {
namespace {

/// Nanoseconds as the microseconds of the format, exactly.
std::string us(std::int64_t ns) {
  const char* sign = ns < 0 ? "-" : "";
  const auto magnitude = static_cast<std::uint64_t>(ns < 0 ? -ns : ns);
  return fmt::format("{}{}.{:03}", sign, magnitude / 1000, magnitude % 1000);
}

}  // namespace

Expected<TraceJsonWriter> TraceJsonWriter::open(const std::string& path, std::int64_t origin_ns) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error))
    return Status(Code::io, fmt::format("'{}' is a folder: name a file", path));
  TROUPE_TRY(check_writable(path));
  return TraceJsonWriter(path, origin_ns);
}

void TraceJsonWriter::event(const std::string& text) {
  if (!std::exchange(first_, false)) text_ += ",\n";
  text_ += text;
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
  write_spans();
  spans_.clear();
  text_ += "\n]}\n";
  return write_file(path_, text_);
}

}  // namespace troupe::report
