#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "devices/files/file_storage.h"
#include "devices/files/secret_file.h"
#include "runtime/store/etcd_store.h"
#include "runtime/store/file_store.h"
#include "runtime/store/store_url.h"

namespace troupe::runtime {

namespace {

FileStorage& files() {
  static FileStorage storage;
  return storage;
}

const SteadyClock& real_time() {
  static const SteadyClock clock;
  return clock;
}

/// Error: what is said of TLS or of a user for a store that has none.
Status check_access(const StoreOptions& options, const StoreUrl& url) {
  const bool tls = !options.ca_file.empty() || !options.cert_file.empty() || !options.key_file.empty();
  if (tls && !url.tls)
    return invalid(fmt::format("the store '{}' uses no TLS: certificates are for etcds://", options.url));
  if (options.cert_file.empty() != options.key_file.empty())
    return invalid("a certificate for the store and its key: expected both files, or neither");
  if (options.user.empty() != options.password_file.empty())
    return invalid("a user of the store and the file of the password: expected both, or neither");
  if (!options.user.empty() && url.kind != StoreUrl::Kind::etcd)
    return invalid(fmt::format("the store '{}' has no users: a user is for etcd", options.url));
  return {};
}

/// Error: a file with a certificate or a key that this process cannot read: said as the store is opened, not by the
/// first call, which a run makes on a thread of its own.
Status check_readable(const std::string& path, const char* what) {
  if (path.empty() || ::access(path.c_str(), R_OK) == 0) return {};
  return invalid(fmt::format("{}: {}: expected a file with {} (PEM)", path, std::strerror(errno), what));
}

Expected<std::string> password_in(const std::string& path) {
  TROUPE_ASSIGN(std::string password, read_secret(path, "a password"));
  while (!password.empty() && (password.back() == '\n' || password.back() == '\r')) password.pop_back();
  if (password.empty()) return invalid(path + " is empty: expected the password of the store's user");
  return password;
}

}  // namespace

bool store_supports_etcd() { return HttpClient::there(); }

Expected<std::unique_ptr<Store>> open_store(const StoreOptions& options) {
  TROUPE_TRY(check_job_name(options.job));
  TROUPE_ASSIGN(const StoreUrl url, read_store_url(options.url));
  TROUPE_TRY(check_access(options, url));
  if (url.kind == StoreUrl::Kind::files)
    return std::unique_ptr<Store>(new FileStore(files(), real_time(), url.dir + "/" + options.job));
  if (!store_supports_etcd())
    return invalid(
        fmt::format("the store '{}': this program was built without libcurl (7.85 or newer), by which it "
                    "speaks with etcd: install libcurl4-openssl-dev and build again, or use files:DIR",
                    options.url));
  if (options.lease_ms < 1 || options.deadline_ms < 1)
    return invalid(fmt::format("the store '{}': expected a lease and a deadline of 1 ms at least", options.url));
  TROUPE_TRY(check_readable(options.ca_file, "the authorities that sign the store's certificate"));
  TROUPE_TRY(check_readable(options.cert_file, "this process's certificate for the store"));
  TROUPE_TRY(check_readable(options.key_file, "the key of that certificate"));
  EtcdAccess access{.endpoints = url.endpoints,
                    .tls = url.tls,
                    .files = {options.ca_file, options.cert_file, options.key_file},
                    .user = options.user};
  if (!options.user.empty()) {
    TROUPE_ASSIGN(access.password, password_in(options.password_file));
  }
  const EtcdOptions etcd{url.prefix, options.job, options.lease_ms, options.deadline_ms};
  return std::unique_ptr<Store>(new EtcdStore(real_time(), std::move(access), etcd));
}

}  // namespace troupe::runtime
