#include "comm/ucx/ucx_errors.h"

#include <fmt/format.h>
#include <net/if.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>

namespace troupe::comm::ucx {

namespace {

/// What UCX's segments of a worker take in /dev/shm, measured with UCX 1.13.
constexpr std::uint64_t shm_bytes = 4400 << 10;

/// Whether a list of transports may have one that makes segments in /dev/shm.
bool may_share_memory(const std::string& tls) {
  if (tls.empty()) return true;
  for (std::size_t begin = 0; begin <= tls.size();) {
    const auto end = std::min(tls.find(',', begin), tls.size());
    const std::string name = tls.substr(begin, end - begin);
    if (name != "cma" && name != "tcp" && name != "self") return true;
    begin = end + 1;
  }
  return false;
}

/// Where shared memory is the likely reason why UCX makes no worker: what /dev/shm has, and what to do; else empty.
std::string shared_memory_hint(const UcxOptions& options) {
  if (!may_share_memory(options.tls)) return "";
  struct statvfs shm {};
  constexpr const char* advice = ": make room there, or leave shared memory alone with --ucx-tls tcp (JobOptions::tls)";
  if (::statvfs("/dev/shm", &shm) != 0)
    return std::string("; shared memory needs /dev/shm, and there is none") + advice;
  if ((shm.f_flag & ST_RDONLY) != 0) return std::string("; shared memory needs /dev/shm, which is read-only") + advice;
  if (shm.f_files > 0 && shm.f_favail == 0)
    return std::string("; shared memory needs files in /dev/shm, which has room for none") + advice;
  struct rlimit largest {};
  if (::getrlimit(RLIMIT_FSIZE, &largest) == 0 && largest.rlim_cur < shm_bytes)
    return fmt::format(
        "; a file may have {} KiB here (ulimit -f), and shared memory of a worker has about {} KiB in files: raise "
        "that limit, or leave shared memory alone with --ucx-tls tcp (JobOptions::tls)",
        largest.rlim_cur >> 10, shm_bytes >> 10);
  const std::uint64_t free = shm.f_bavail * shm.f_frsize;
  if (free >= shm_bytes) return "";
  return fmt::format("; /dev/shm has {} KiB free, and each worker needs about {} KiB{}", free >> 10, shm_bytes >> 10,
                     advice);
}

}  // namespace

Status status_of(ucs_status_t s, const std::string& what) {
  if (s == UCS_OK) return {};
  switch (s) {
    case UCS_ERR_CANCELED:
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_REJECTED:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_SHMEM_SEGMENT:
    case UCS_ERR_IO_ERROR:  // with cma, where the process whose memory we read has just died
      return {Code::unavailable, what + " is gone (" + ucs_status_string(s) + ")"};
    default: return {Code::io, what + ": " + ucs_status_string(s)};
  }
}

Status call_failed(const std::string& call, ucs_status_t s) { return {Code::io, call + ": " + ucs_status_string(s)}; }

Status no_worker(const UcxOptions& options, ucs_status_t s) {
  return {Code::io, std::string("ucp_worker_create: ") + ucs_status_string(s) + shared_memory_hint(options)};
}

bool has_room_for(std::int64_t transports, const std::string& tls) {
  struct statvfs shm {};
  if (!may_share_memory(tls) || ::statvfs("/dev/shm", &shm) != 0) return true;
  return shm.f_bavail * shm.f_frsize >= static_cast<std::uint64_t>(transports) * shm_bytes;
}

Status check_net_devices(const std::string& list) {
  for (std::size_t begin = 0; begin < list.size();) {
    const auto end = std::min(list.find(',', begin), list.size());
    const std::string device = list.substr(begin, end - begin), adapter = device.substr(0, device.find(':'));
    begin = end + 1;
    if (device == "all" || ::if_nametoindex(device.c_str()) > 0) continue;
    if (std::error_code error; std::filesystem::exists("/sys/class/infiniband/" + adapter, error)) continue;
    std::string there;
    if (struct if_nameindex* all = ::if_nameindex()) {
      for (const auto* i = all; i->if_index > 0; ++i)
        there += fmt::format("{}{}", there.empty() ? "" : ", ", i->if_name);
      ::if_freenameindex(all);
    }
    return invalid(
        fmt::format("network device '{}' is not there; this host has {} (ucx_info -d lists what UCX can use)", device,
                    there.empty() ? "none" : there));
  }
  return {};
}

bool cards_write(const UcxOptions& options) {
  std::error_code error;
  if (options.tls.empty()) return !std::filesystem::is_empty("/sys/class/infiniband", error) && !error;
  for (std::size_t begin = 0; begin <= options.tls.size();) {
    const auto end = std::min(options.tls.find(',', begin), options.tls.size());
    const std::string name = options.tls.substr(begin, end - begin);
    if (name != "posix" && name != "sysv" && name != "cma" && name != "tcp" && name != "self") return true;
    begin = end + 1;
  }
  return false;
}

}  // namespace troupe::comm::ucx
