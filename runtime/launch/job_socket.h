// JobSocket: by which other processes of this machine ask a running job what it does, and to change its shape. One
// request, one answer, a packet each (SOCK_SEQPACKET). Only the job's user may connect. An answer that begins with
// "troupe: " is an error.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "devices/base/status.h"

namespace troupe::runtime {

/// Most bytes of a request, and of an answer.
inline constexpr std::size_t request_bytes_max = 4096, answer_bytes_max = 60'000;

/// The job's end. Not thread-safe; no call waits for another process.
class JobSocket {
 public:
  /// Listens at `path`; a socket that is there goes. Error (`io`): of the system, with the path.
  static Expected<std::unique_ptr<JobSocket>> open(const std::string& path);
  ~JobSocket();
  JobSocket(const JobSocket&) = delete;

  /// Which become readable when a process asks; where this process has no descriptor left to hear one, without that
  /// which would stay readable.
  std::vector<int> fds() const;
  /// Takes the requests that have come. `answer` returns the answer, or nullopt: it is given later, by reply().
  void serve(const std::function<std::optional<std::string>(const std::string& request)>& answer);
  /// Answers all who wait.
  void reply(const std::string& text);

 private:
  JobSocket(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  const std::string path_;
  const int fd_;
  std::optional<std::pair<std::uint64_t, std::uint64_t>> bound_;  // device and number of the file that it has made
  bool full_ = false;                  // the process has no descriptor for another connection
  std::vector<int> asking_, waiting_;  // connections
};

/// Requests: "ps": what the job does; scale_request with a shape behind it: go on so; logs_request (job_log.h).
inline constexpr const char* scale_request = "scale ";

/// Asks the job that listens at `path`, and waits for its answer. Error (`unavailable`): no job listens there, or it
/// ends without an answer, or gives none for `limit_s`; then it does not do what it was asked for.
Expected<std::string> ask_job(const std::string& path, const std::string& request, int limit_s);

}  // namespace troupe::runtime
