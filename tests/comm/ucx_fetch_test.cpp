// A payload that UCX refuses to move: the receive fails, and UCX's descriptor is given back to UCX once.
#include <dlfcn.h>
#include <doctest/doctest.h>
#include <ucp/api/ucp.h>

#include <atomic>

#include "tests/comm/pair.h"

using namespace troupe;
using namespace troupe::comm;
using namespace troupe::comm::test;

namespace {

std::atomic<int> refused{0}, to_refuse{0};

template <class F>
F* next(const char* name) {
  return reinterpret_cast<F*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

// The transport, linked into this program, calls these; all but what a test asks for goes on to UCX.
extern "C" ucs_status_ptr_t ucp_am_recv_data_nbx(ucp_worker_h worker, void* descriptor, void* buffer, size_t count,
                                                 const ucp_request_param_t* param) {
  if (to_refuse > 0) {
    --to_refuse;
    ++refused;
    return UCS_STATUS_PTR(UCS_ERR_NO_MEMORY);
  }
  return next<decltype(ucp_am_recv_data_nbx)>("ucp_am_recv_data_nbx")(worker, descriptor, buffer, count, param);
}

TEST_CASE(
    "a payload that UCX refuses to move fails its receive, and UCX has its descriptor back: the sender is not kept "
    "waiting") {
  for (const bool posted_first : {true, false}) {
    CAPTURE(posted_first);
    ShmPair pair;
    const auto data = payload(1 << 20, 3);
    std::vector<std::byte> into(data.size());
    Outcome s, r, s2, r2;
    refused = 0;
    to_refuse = 1;
    if (posted_first) {  // then UCX is refused inside its own callback
      pair.at(1).recv(0, {3, 0, 1}, into, r.received());
      pair.settle();
      pair.at(0).send(1, header(1), data, s.sent());
    } else {
      pair.at(0).send(1, header(1), data, s.sent());
      REQUIRE(pair.wait([&] { return pair.at(1).stats().unexpected_max == 1; }));
      pair.at(1).recv(0, {3, 0, 1}, into, r.received());
    }
    REQUIRE(pair.wait([&] { return r.done(); }));
    CHECK(refused == 1);
    CHECK(r.status.code() == Code::io);
    CHECK(r.status.message().find("rank 0") != std::string::npos);
    CHECK(pair.wait([&] { return s.done(); }));
    pair.at(1).recv(0, {3, 0, 2}, into, r2.received());  // and the next one arrives
    pair.at(0).send(1, header(2), data, s2.sent());
    REQUIRE(pair.wait([&] { return s2.done() && r2.done(); }));
    CHECK(r2.status.message() == "");
    CHECK(into == data);
  }
}
