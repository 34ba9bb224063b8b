#include "apps/machines/own_address.h"

#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

namespace troupe::lm {

namespace {

/// Whether other machines can reach an address: not one of the machine itself, or of one cable (fe80::).
bool is_reachable(const sockaddr& at) {
  if (at.sa_family == AF_INET) return (ntohl(reinterpret_cast<const sockaddr_in&>(at).sin_addr.s_addr) >> 24) != 127;
  if (at.sa_family != AF_INET6) return false;
  const in6_addr& a = reinterpret_cast<const sockaddr_in6&>(at).sin6_addr;
  return !IN6_IS_ADDR_LOOPBACK(&a) && !IN6_IS_ADDR_LINKLOCAL(&a) && !IN6_IS_ADDR_UNSPECIFIED(&a);
}

std::optional<std::string> text_of(const sockaddr& at) {
  char host[NI_MAXHOST];
  const socklen_t size = at.sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (::getnameinfo(&at, size, host, sizeof host, nullptr, 0, NI_NUMERICHOST) != 0) return std::nullopt;
  return at.sa_family == AF_INET6 ? "[" + std::string(host) + "]" : std::string(host);
}

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Addresses look_up(const std::string& host) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  if (::getaddrinfo(host.c_str(), "9", &hints, &found) != 0) found = nullptr;
  return {found, &::freeaddrinfo};
}

/// The address that packets to a host would have as their source. None is sent.
std::optional<std::string> source_towards(const addrinfo& to) {
  const int fd = ::socket(to.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return std::nullopt;
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  auto* address = reinterpret_cast<sockaddr*>(&own);
  const bool known = ::connect(fd, to.ai_addr, to.ai_addrlen) == 0 && ::getsockname(fd, address, &size) == 0;
  ::close(fd);
  return known && is_reachable(*address) ? text_of(*address) : std::nullopt;
}

std::vector<std::string> addresses_of_interfaces() {
  std::vector<std::string> found;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return found;
  for (const int family : {AF_INET, AF_INET6}) {  // the second where none has the first
    if (!found.empty()) break;
    for (const ifaddrs* i = all; i; i = i->ifa_next) {
      constexpr unsigned up = IFF_UP | IFF_RUNNING;
      if (!i->ifa_addr || i->ifa_addr->sa_family != family || (i->ifa_flags & up) != up) continue;
      if ((i->ifa_flags & IFF_LOOPBACK) != 0 || !is_reachable(*i->ifa_addr)) continue;
      if (auto text = text_of(*i->ifa_addr)) found.push_back(*std::move(text));
    }
  }
  ::freeifaddrs(all);
  return found;
}

}  // namespace

Expected<std::string> own_address(const std::vector<std::string>& others) {
  for (const std::string& other : others) {
    const Addresses found = look_up(other.substr(other.rfind('@') + 1));
    for (const addrinfo* a = found.get(); a; a = a->ai_next)
      if (auto source = source_towards(*a)) return *std::move(source);
  }
  char host[256] = "";
  if (::gethostname(host, sizeof host - 1) == 0) {
    const Addresses found = look_up(host);
    for (const addrinfo* a = found.get(); a; a = a->ai_next)
      if (is_reachable(*a->ai_addr))
        if (auto text = text_of(*a->ai_addr)) return *std::move(text);
  }
  auto all = addresses_of_interfaces();
  if (all.size() == 1) return std::move(all[0]);
  std::string named;
  for (const std::string& one : all) named += (named.empty() ? "" : ", ") + one;
  return invalid(all.empty()
                     ? "this machine has no address at which others could reach it: name one with --listen"
                     : fmt::format("this machine has the addresses {}: name the one at which the other machines "
                                   "reach it, such as --listen {}:0",
                                   named, all[0]));
}

}  // namespace troupe::lm
