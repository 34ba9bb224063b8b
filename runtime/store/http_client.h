// Requests over HTTP, with or without TLS: a thin hull around libcurl, which no other file knows.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "devices/base/status.h"

namespace troupe::runtime {

struct HttpOptions {
  std::string ca_file;              ///< empty: the authorities that the system trusts
  std::string cert_file, key_file;  ///< empty: no certificate of one's own
};

struct HttpRequest {
  std::string url;
  std::vector<std::string> headers;
  std::string body;
  std::int64_t timeout_ms = 0;
};

/// For one thread at a time.
class HttpClient {
 public:
  /// What is done with a part of an answer that has HTTP's `status`. Returns false: the rest is not wanted.
  using TakePart = std::function<bool(int status, std::string_view part)>;
  /// Asked about once a second, and more often while bytes come. Returns false: what comes is not waited for any more.
  using GoesOn = std::function<bool()>;

  /// Whether this program was built with libcurl.
  static bool there();
  explicit HttpClient(HttpOptions options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  /// Posts the body, and returns HTTP's status when the answer has ended, or take() or goes_on() has returned false.
  /// Uses no proxy and follows no redirection. Error: `unavailable`, the server was not reached, or has not ended its
  /// answer in time; `denied`, its certificate is not trusted, or it does not trust ours; `invalid`, a file of the
  /// options cannot be used.
  Expected<int> post(const HttpRequest& request, const TakePart& take, const GoesOn& goes_on = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe::runtime
