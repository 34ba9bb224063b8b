#include "runtime/store/http_client.h"

#ifdef TROUPE_WITH_CURL
#include <curl/curl.h>

#include <array>
#endif

#include "devices/base/check.h"

namespace troupe::runtime {

#ifdef TROUPE_WITH_CURL

struct HttpClient::Impl {
  explicit Impl(HttpOptions o) : options(std::move(o)) {
    static const CURLcode begun = ::curl_global_init(CURL_GLOBAL_DEFAULT);
    ASSERT(begun == CURLE_OK, static_cast<int>(begun));
    curl = ::curl_easy_init();
    ASSERT(curl);
  }
  ~Impl() { ::curl_easy_cleanup(curl); }

  HttpOptions options;
  CURL* curl = nullptr;
};

namespace {

/// A request on its way.
struct Exchange {
  CURL* curl;
  const HttpClient::TakePart& take;
  const HttpClient::GoesOn& goes_on;
  bool stopped = false;
};

std::size_t take_part(char* data, std::size_t, std::size_t bytes, void* of) {
  auto& exchange = *static_cast<Exchange*>(of);
  long status = 0;
  ::curl_easy_getinfo(exchange.curl, CURLINFO_RESPONSE_CODE, &status);
  exchange.stopped = !exchange.take(static_cast<int>(status), {data, bytes});
  return exchange.stopped ? 0 : bytes;
}

int asks_to_go_on(void* of, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  auto& exchange = *static_cast<Exchange*>(of);
  exchange.stopped = exchange.stopped || !exchange.goes_on();
  return exchange.stopped;
}

Code code_of(CURLcode failed) {
  switch (failed) {
    case CURLE_PEER_FAILED_VERIFICATION: return Code::denied;
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL: return Code::invalid;
    default: return Code::unavailable;
  }
}

struct FreeList {
  void operator()(curl_slist* list) const { ::curl_slist_free_all(list); }
};

}  // namespace

bool HttpClient::there() { return true; }
HttpClient::HttpClient(HttpOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
HttpClient::~HttpClient() = default;

Expected<int> HttpClient::post(const HttpRequest& request, const TakePart& take, const GoesOn& goes_on) {
  CURL* curl = impl_->curl;
  ::curl_easy_reset(curl);  // keeps connections
  std::array<char, CURL_ERROR_SIZE> why{};
  Exchange exchange{curl, take, goes_on};
  // "Expect:": without a pause in which the server may refuse a long body.
  std::unique_ptr<curl_slist, FreeList> headers(::curl_slist_append(nullptr, "Expect:"));
  for (const auto& header : request.headers) {
    curl_slist* longer = ::curl_slist_append(headers.get(), header.c_str());
    ASSERT(longer);
    static_cast<void>(headers.release());
    headers.reset(longer);
  }
  bool set = true;
  const auto option = [&](CURLoption name, auto value) {
    set = ::curl_easy_setopt(curl, name, value) == CURLE_OK && set;
  };
  option(CURLOPT_URL, request.url.c_str());
  option(CURLOPT_PROTOCOLS_STR, "http,https");
  option(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  option(CURLOPT_PROXY, "");
  option(CURLOPT_NOSIGNAL, 1L);
  option(CURLOPT_ERRORBUFFER, why.data());
  option(CURLOPT_TIMEOUT_MS, static_cast<long>(std::max<std::int64_t>(request.timeout_ms, 1)));
  option(CURLOPT_HTTPHEADER, headers.get());
  option(CURLOPT_POST, 1L);
  option(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
  option(CURLOPT_POSTFIELDS, request.body.data());
  option(CURLOPT_WRITEFUNCTION, &take_part);
  option(CURLOPT_WRITEDATA, &exchange);
  if (goes_on) {
    option(CURLOPT_NOPROGRESS, 0L);
    option(CURLOPT_XFERINFOFUNCTION, &asks_to_go_on);
    option(CURLOPT_XFERINFODATA, &exchange);
  }
  const HttpOptions& files = impl_->options;
  if (!files.ca_file.empty()) option(CURLOPT_CAINFO, files.ca_file.c_str());
  if (!files.cert_file.empty()) option(CURLOPT_SSLCERT, files.cert_file.c_str());
  if (!files.key_file.empty()) option(CURLOPT_SSLKEY, files.key_file.c_str());
  ASSERT(set, request.url);
  const CURLcode failed = ::curl_easy_perform(curl);
  if (failed != CURLE_OK && !exchange.stopped)
    return Status(code_of(failed), why[0] ? std::string(why.data()) : ::curl_easy_strerror(failed));
  long status = 0;
  ::curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  return static_cast<int>(status);
}

#else

struct HttpClient::Impl {};

bool HttpClient::there() { return false; }
HttpClient::HttpClient(HttpOptions) { REQUIRE(there()); }
HttpClient::~HttpClient() = default;
Expected<int> HttpClient::post(const HttpRequest&, const TakePart&, const GoesOn&) {
  return Status(Code::internal, "built without libcurl");
}

#endif

}  // namespace troupe::runtime
