#include "apps/report/trace_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

namespace troupe::report {
namespace {

/// A JSON string, quotes included; bytes that are not UTF-8 are replaced.
std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Nanoseconds as the microseconds of the format, exactly.
std::string us(std::int64_t ns) {
  const char* sign = ns < 0 ? "-" : "";
  const auto magnitude = static_cast<std::uint64_t>(ns < 0 ? -ns : ns);
  return fmt::format("{}{}.{:03}", sign, magnitude / 1000, magnitude % 1000);
}

}  // namespace

Expected<TraceJsonWriter> TraceJsonWriter::open(const std::string& path, std::int64_t origin_ns) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (!file) return Status(Code::io, fmt::format("cannot open '{}': {}", path, std::strerror(errno)));
  return TraceJsonWriter(file, path, origin_ns);
}

TraceJsonWriter::TraceJsonWriter(std::FILE* file, std::string path, std::int64_t origin_ns)
    : file_(file), path_(std::move(path)), origin_ns_(origin_ns) {
  std::fputs("{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n", file_);
}

TraceJsonWriter::TraceJsonWriter(TraceJsonWriter&& other) noexcept
    : file_(std::exchange(other.file_, nullptr)),
      path_(std::move(other.path_)),
      origin_ns_(other.origin_ns_),
      first_(other.first_),
      rows_(std::move(other.rows_)) {}

TraceJsonWriter::~TraceJsonWriter() {
  if (file_) (void)close();
}

void TraceJsonWriter::event(const std::string& text) {
  if (!std::exchange(first_, false)) std::fputs(",\n", file_);
  std::fputs(text.c_str(), file_);
}

void TraceJsonWriter::name_worker(int worker, const std::string& name) {
  event(fmt::format("{{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": {}, \"args\": {{\"name\": {}}}}}", worker,
                    quoted(name)));
  event(fmt::format("{{\"ph\": \"M\", \"name\": \"process_sort_index\", \"pid\": {}, \"args\": {{\"sort_index\": {}}}}}",
                    worker, worker));
}

int TraceJsonWriter::row_of(int worker, const std::string& row) {
  auto& rows = rows_[worker];
  const auto [entry, is_new] = rows.try_emplace(row, static_cast<int>(rows.size()) + 1);
  if (is_new) {
    event(fmt::format("{{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": {}, \"tid\": {}, \"args\": {{\"name\": {}}}}}",
                      worker, entry->second, quoted(row)));
    event(fmt::format("{{\"ph\": \"M\", \"name\": \"thread_sort_index\", \"pid\": {}, \"tid\": {}, \"args\": "
                      "{{\"sort_index\": {}}}}}", worker, entry->second, entry->second));
  }
  return entry->second;
}

void TraceJsonWriter::add(int worker, const std::vector<TraceSpan>& spans) {
  for (const auto& span : spans) {
    const int row = row_of(worker, span.row);
    const auto begin = span.begin_ns - origin_ns_, end = std::max(begin, span.end_ns - origin_ns_);
    const auto microbatch = span.microbatch < 0 ? "" : fmt::format(", \"microbatch\": {}", span.microbatch);
    event(fmt::format("{{\"ph\": \"X\", \"name\": {}, \"cat\": \"act\", \"pid\": {}, \"tid\": {}, \"ts\": {}, \"dur\": {}, "
                      "\"args\": {{\"step\": {}{}}}}}", quoted(span.name), worker, row, us(begin), us(end - begin),
                      span.step, microbatch));
    // An arrow binds to the slice around its time: leave a nanosecond before the slice's end. Ids are strings:
    // 64 bits do not fit JSON's numbers.
    const auto arrow = [&](const char* phase, std::uint64_t id, std::int64_t time_ns, const char* bind) {
      event(fmt::format("{{\"ph\": \"{}\", \"name\": \"message\", \"cat\": \"message\", \"id\": \"{:#x}\", \"pid\": {}, "
                        "\"tid\": {}, \"ts\": {}{}}}", phase, id, worker, row, us(time_ns), bind));
    };
    if (span.flow_in) arrow("f", span.flow_in, begin, ", \"bp\": \"e\"");
    if (span.flow_out) arrow("s", span.flow_out, std::max(begin, end - 1), "");
  }
}

Status TraceJsonWriter::close() {
  std::FILE* file = std::exchange(file_, nullptr);
  if (!file) return {};
  std::fputs("\n]}\n", file);
  const bool failed = std::ferror(file) != 0;
  if (std::fclose(file) != 0 || failed)
    return Status(Code::io, fmt::format("cannot write '{}': {}", path_, std::strerror(errno)));
  return {};
}

}  // namespace troupe::report
