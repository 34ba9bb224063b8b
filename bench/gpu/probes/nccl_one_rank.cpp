// What NCCL does with one GPU: times of the life of a communicator, what calls answer after revoke and abort, shrink,
// an init that never completes, and a second rank on the same GPU.
#include <nccl.h>

#include <thread>

#include "fact.h"

using namespace probe;

namespace {

std::string name_of(ncclResult_t r, ncclComm_t c = nullptr) {
  std::string s = text("%d %s", int(r), ncclGetErrorString(r));
  if (r != ncclSuccess && r != ncclInProgress) s += text(" [%s]", ncclGetLastError(c));
  return s;
}
ncclConfig_t config(bool blocking) {
  ncclConfig_t c = NCCL_CONFIG_INITIALIZER;
  c.blocking = blocking ? 1 : 0;
  return c;
}
/// Polls until the communicator leaves ncclInProgress, or for `limit_ms`.
ncclResult_t settle(ncclComm_t c, double* ms, long* polls, double limit_ms = 10000) {
  const double begin = now_us();
  ncclResult_t r = ncclInProgress;
  *polls = 0;
  while (r == ncclInProgress && now_us() - begin < limit_ms * 1e3) {
    if (ncclCommGetAsyncError(c, &r) != ncclSuccess) break;
    ++*polls;
  }
  *ms = (now_us() - begin) / 1e3;
  return r;
}
double free_mib() {
  std::size_t free = 0, total = 0;
  CUDA(cudaMemGetInfo(&free, &total));
  return double(free) / 0x1p20;
}

void one_rank() {
  ncclUniqueId id;
  double begin = now_us();
  fact("NCCL: ncclGetUniqueId", name_of(ncclGetUniqueId(&id)));
  fact("NCCL: time of ncclGetUniqueId", (now_us() - begin) / 1e3, "ms");
  double memory = free_mib();
  ncclComm_t c = nullptr;
  begin = now_us();
  ncclConfig_t blocking = config(true);
  fact("NCCL: blocking init of one rank", name_of(ncclCommInitRankConfig(&c, 1, id, 0, &blocking)));
  fact("NCCL: time of it", (now_us() - begin) / 1e3, "ms");
  fact("NCCL: device memory of it", memory - free_mib(), "MiB");
  const cudaStream_t s = new_stream();
  auto *x = on_device<float>(1 << 26), *y = on_device<float>(1 << 26);
  fact("NCCL: all-reduce in place of 256 MiB, one rank",
       timed_ms(s, 10, [&](int) { ncclAllReduce(x, x, 1 << 26, ncclFloat, ncclSum, c, s); }), "ms");
  fact("NCCL: all-gather out of place of 256 MiB, one rank",
       timed_ms(s, 10, [&](int) { ncclAllGather(x, y, 1 << 26, ncclFloat, c, s); }), "ms");
  fact("NCCL: reduce-scatter of int64 in place", name_of(ncclReduceScatter(x, x, 1 << 24, ncclInt64, ncclSum, c, s)));
  {
    const ncclResult_t begun = ncclGroupStart(), sent = ncclSend(x, 1 << 20, ncclFloat, 0, c, s),
                       received = ncclRecv(y, 1 << 20, ncclFloat, 0, c, s), ended = ncclGroupEnd();
    fact("NCCL: send to itself in a group",
         name_of(begun) + ", " + name_of(sent) + ", " + name_of(received) + ", end of group " + name_of(ended));
    const ncclResult_t alone = ncclSend(x, 1 << 20, ncclFloat, 0, c, s);
    fact("NCCL: send to itself without a group", name_of(alone));
    CUDA(cudaStreamSynchronize(s));
  }
  std::vector<double> us;
  for (int i = 0; i < 200; ++i) {
    begin = now_us();
    ncclAllReduce(x, y, 1024, ncclFloat, ncclSum, c, s);
    us.push_back(now_us() - begin);
  }
  CUDA(cudaStreamSynchronize(s));
  fact("NCCL: host time of a small all-reduce, one rank", us, "us");
  fact("NCCL: device memory after the collectives", memory - free_mib() - 512, "MiB");
  begin = now_us();
  fact("NCCL: revoke", name_of(ncclCommRevoke(c, NCCL_REVOKE_DEFAULT), c));
  fact("NCCL: time of it", (now_us() - begin) / 1e3, "ms");
  ncclResult_t async = ncclSuccess;
  const ncclResult_t got = ncclCommGetAsyncError(c, &async);
  fact("NCCL: async error after revoke", name_of(got, c) + ", says " + name_of(async));
  fact("NCCL: all-reduce after revoke", name_of(ncclAllReduce(x, y, 1024, ncclFloat, ncclSum, c, s), c));
  fact("NCCL: stream after it", probe::name_of(cudaStreamSynchronize(s)));
  ncclComm_t smaller = nullptr;
  int excluded[] = {0};
  fact("NCCL: shrink after revoke, no rank excluded",
       name_of(ncclCommShrink(c, excluded, 0, &smaller, nullptr, NCCL_SHRINK_DEFAULT), c));
  begin = now_us();
  fact("NCCL: abort", name_of(ncclCommAbort(c)));
  fact("NCCL: time of it", (now_us() - begin) / 1e3, "ms");
  fact("NCCL: device memory after abort", memory - free_mib() - 512, "MiB");

  // Again, without blocking.
  for (int round = 0; round < 3; ++round) {
    c = nullptr;
    ncclGetUniqueId(&id);
    ncclConfig_t free_running = config(false);
    begin = now_us();
    const ncclResult_t r = ncclCommInitRankConfig(&c, 1, id, 0, &free_running);
    const double call_ms = (now_us() - begin) / 1e3;
    double ms = 0;
    long polls = 0;
    const ncclResult_t end = settle(c, &ms, &polls);
    fact(text("NCCL: non-blocking init, round %d", round),
         text("call %s after %.2f ms, ready %s after %.2f ms more and %ld polls", name_of(r).c_str(), call_ms,
              name_of(end).c_str(), ms, polls));
    begin = now_us();
    const ncclResult_t issued = ncclAllReduce(x, y, 1 << 20, ncclFloat, ncclSum, c, s);
    const double issue_us = now_us() - begin;
    const ncclResult_t after = settle(c, &ms, &polls);
    fact("NCCL: all-reduce on a non-blocking communicator",
         text("%s after %.1f us, then %s after %ld polls", name_of(issued).c_str(), issue_us, name_of(after).c_str(),
              polls));
    CUDA(cudaStreamSynchronize(s));
    if (round == 0) {
      ncclComm_t child = nullptr;
      const ncclResult_t shrunk = ncclCommShrink(c, excluded, 0, &child, nullptr, NCCL_SHRINK_DEFAULT);
      const ncclResult_t settled = settle(c, &ms, &polls, 2000);
      fact("NCCL: shrink, no rank excluded", name_of(shrunk, c) + ", then " + name_of(settled));
      begin = now_us();
      fact("NCCL: abort, non-blocking", name_of(ncclCommAbort(c)));
      fact("NCCL: time of it", (now_us() - begin) / 1e3, "ms");
    } else if (round == 1) {
      begin = now_us();
      const ncclResult_t f = ncclCommFinalize(c), g = settle(c, &ms, &polls);
      const ncclResult_t h = ncclCommDestroy(c);
      fact("NCCL: finalize, then destroy", name_of(f) + ", then " + name_of(g) + ", destroy " + name_of(h));
      fact("NCCL: time of it", (now_us() - begin) / 1e3, "ms");
    } else {
      begin = now_us();
      fact("NCCL: destroy without finalize", name_of(ncclCommDestroy(c)));
      fact("NCCL: time of it", (now_us() - begin) / 1e3, "ms");
    }
  }
  CUDA(cudaFree(x));
  CUDA(cudaFree(y));
}

void exclude_oneself() {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  ncclComm_t c = nullptr, none = nullptr;
  ncclConfig_t blocking = config(true);
  ncclCommInitRankConfig(&c, 1, id, 0, &blocking);
  int excluded[] = {0};
  const ncclResult_t r = ncclCommShrink(c, excluded, 1, &none, nullptr, NCCL_SHRINK_ABORT);
  fact("NCCL: shrink that excludes the only rank, itself", name_of(r, c));
}

/// Two ranks are asked for, one comes.
void a_rank_that_never_comes() {
  for (const bool revoke : {false, true}) {
    ncclUniqueId id;
    ncclGetUniqueId(&id);
    ncclComm_t c = nullptr;
    ncclConfig_t free_running = config(false);
    const ncclResult_t r = ncclCommInitRankConfig(&c, 2, id, 0, &free_running);
    double ms = 0;
    long polls = 0;
    const ncclResult_t after = settle(c, &ms, &polls, 1500);
    fact("NCCL: init of two ranks of which one comes", name_of(r) + ", after 1.5 s " + name_of(after));
    if (revoke) fact("NCCL: revoke of that init", name_of(ncclCommRevoke(c, NCCL_REVOKE_DEFAULT), c));
    const double begin = now_us();
    const ncclResult_t a = ncclCommAbort(c);
    fact("NCCL: abort of that init", text("%s after %.1f ms", name_of(a).c_str(), (now_us() - begin) / 1e3));
  }
}

void two_ranks_on_one_gpu() {
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  std::string said[2];
  std::vector<std::thread> all;
  for (int rank = 0; rank < 2; ++rank)
    all.emplace_back([&, rank] {
      CUDA(cudaSetDevice(0));
      ncclComm_t c = nullptr;
      ncclConfig_t free_running = config(false);
      const ncclResult_t r = ncclCommInitRankConfig(&c, 2, id, rank, &free_running);
      double ms = 0;
      long polls = 0;
      const ncclResult_t end = settle(c, &ms, &polls, 8000);
      said[rank] = text("call %s, after %.0f ms %s", name_of(r).c_str(), ms, name_of(end, c).c_str());
      const double begin = now_us();
      const ncclResult_t a = ncclCommAbort(c);
      said[rank] += text(", abort %s after %.1f ms", name_of(a).c_str(), (now_us() - begin) / 1e3);
    });
  for (auto& t : all) t.join();
  for (int rank = 0; rank < 2; ++rank) fact(text("NCCL: two ranks on one GPU, rank %d", rank), said[rank]);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string only = argc > 1 ? argv[1] : "";
  CUDA(cudaSetDevice(0));
  CUDA(cudaFree(nullptr));
  if (only.empty() || only == "one") one_rank();
  if (only.empty() || only == "two") two_ranks_on_one_gpu();
  if (only == "exclude") exclude_oneself();
  if (only.empty() || only == "never") a_rank_that_never_comes();
}
