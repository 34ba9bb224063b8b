// trace.json in Chrome's trace-event format, for ui.perfetto.dev and chrome://tracing.
//
// A process per worker, a row per actor, a slice per act (with its step and microbatch), an arrow per message. Where an
// act waits for what it works on, the wait is a slice of category "wait" in a row of its own (trace_arrows.h).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "apps/report/trace_arrows.h"
#include "devices/base/status.h"
#include "devices/base/trace.h"

namespace troupe::report {

/// Not thread-safe. The file is there, and valid JSON, once close() has returned ok: see write_file.
class TraceJsonWriter {
 public:
  /// Times are shown relative to `origin_ns`. Error: the file cannot be written, or is a folder.
  static Expected<TraceJsonWriter> open(const std::string& path, std::int64_t origin_ns = 0);

  /// Names worker `worker` ("worker 0: stage 0"); workers are shown in the order of their numbers.
  void name_worker(int worker, const std::string& name);
  /// Adds spans of a worker; may be called several times. Rows are shown in the order in which they first appear.
  /// close() writes the spans: an arrow needs both of its ends.
  void add(int worker, const std::vector<TraceSpan>& spans);
  /// Writes the file. Called once, last.
  Status close();

 private:
  TraceJsonWriter(std::string path, std::int64_t origin_ns) : path_(std::move(path)), origin_ns_(origin_ns) {}
  void event(const std::string& text);
  int row_of(int worker, const std::string& row);
  /// Writes a slice; returns its row.
  int slice(const TraceSlice& s, const char* category, const std::string& row, std::int64_t begin_ns,
            std::int64_t end_ns);
  void write_spans();

  std::string path_;
  std::int64_t origin_ns_;
  std::string text_ = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  bool first_ = true;
  std::map<int, std::map<std::string, int>> rows_;
  std::vector<std::vector<TraceSpan>> spans_;  // by worker
};

}  // namespace troupe::report
