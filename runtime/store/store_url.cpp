#include "runtime/store/store_url.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace troupe::runtime {

namespace {

constexpr std::size_t endpoints_max = 16, job_chars_max = 128;

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

bool is_host(std::string_view host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
    return std::all_of(host.begin(), host.end(),
                       [](char c) { return is_name(c) || c == ':' || c == '%'; });  // fe80::1%eth0
  }
  return !host.empty() && host.front() != '-' && std::all_of(host.begin(), host.end(), is_name);
}

bool is_endpoint(std::string_view text) {
  const auto colon = text.rfind(':');
  if (colon == std::string_view::npos || !is_host(text.substr(0, colon))) return false;
  const auto port = text.substr(colon + 1);
  std::uint16_t number = 0;
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), number);
  return error == std::errc() && end == port.data() + port.size() && number != 0;
}

bool is_prefix(std::string_view text) {
  return text.size() > 1 && text.size() <= 256 && text.find("//") == std::string_view::npos &&
         std::all_of(text.begin(), text.end(), [](char c) { return is_name(c) || c == '/'; });
}

}  // namespace

Expected<StoreUrl> read_store_url(std::string_view url) {
  const auto wrong = [&](const std::string& why) {
    return invalid(
        fmt::format("the store '{}' {}: expected files:DIR, etcd://HOST:PORT[,HOST:PORT...][/PREFIX] or "
                    "etcds://... (TLS)",
                    url, why));
  };
  StoreUrl read;
  std::string_view rest;
  const auto is = [&](std::string_view scheme) {
    if (!url.starts_with(scheme)) return false;
    rest = url.substr(scheme.size());
    return true;
  };
  if (is("files:")) {
    read.dir = rest;
    if (read.dir.empty()) return wrong("names no folder");
    return read;
  }
  read.kind = StoreUrl::Kind::etcd;
  read.tls = is("etcds://");
  if (!read.tls && !is("etcd://")) return wrong("is of no kind that is known");
  const auto slash = rest.find('/');
  const std::string_view endpoints = rest.substr(0, slash);
  std::string_view prefix = slash == std::string_view::npos ? "/" : rest.substr(slash);
  while (prefix.size() > 1 && prefix.back() == '/') prefix.remove_suffix(1);
  if (prefix == "/") prefix = "/troupe";
  if (!is_prefix(prefix)) return wrong("has a prefix that is not of letters, digits and ._-/, or has two / in a row");
  read.prefix = prefix;
  for (std::size_t begin = 0; begin <= endpoints.size();) {
    const auto end = std::min(endpoints.find(',', begin), endpoints.size());
    const auto endpoint = endpoints.substr(begin, end - begin);
    if (!is_endpoint(endpoint)) return wrong(fmt::format("has '{}' for a HOST:PORT", endpoint));
    read.endpoints.emplace_back(endpoint);
    begin = end + 1;
  }
  if (read.endpoints.size() > endpoints_max) return wrong(fmt::format("has more than {} addresses", endpoints_max));
  return read;
}

Status check_job_name(std::string_view job) {
  if (!job.empty() && job.size() <= job_chars_max && job.front() != '.' && job.front() != '-' &&
      std::all_of(job.begin(), job.end(), is_name))
    return {};
  return invalid(
      fmt::format("'{}' cannot be the name of a job in a store: expected at most {} letters, digits and ._-, "
                  "the first no . or -",
                  job, job_chars_max));
}

}  // namespace troupe::runtime
