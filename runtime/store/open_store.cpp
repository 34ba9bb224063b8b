#include <fmt/format.h>

#include "devices/files/file_storage.h"
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

}  // namespace

bool store_supports_etcd() { return false; }

Expected<std::unique_ptr<Store>> open_store(const StoreOptions& options) {
  TROUPE_TRY(check_job_name(options.job));
  TROUPE_ASSIGN(const StoreUrl url, read_store_url(options.url));
  if (url.kind == StoreUrl::Kind::files)
    return std::unique_ptr<Store>(new FileStore(files(), real_time(), url.dir + "/" + options.job));
  return invalid(fmt::format("the store '{}': etcd is not built in yet", options.url));
}

}  // namespace troupe::runtime
