// The contract of Device (devices/device.h), of a GPU: memory, and its end.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstring>

#include "tests/cuda/gpu.h"
#include "tests/skip.h"

using namespace troupe;
using namespace troupe::test;

namespace {

bool says(const Status& status, const std::string& part) {
  INFO(status.message());
  CHECK(status.message().find(part) != std::string::npos);
  return status.message().find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("memory of a GPU is zeroed, at a 4 KiB boundary, of the size asked for, and says where it lies") {
  fresh();
  SteadyClock clock;
  auto device = open_gpu(clock);
  CHECK(device->name().substr(0, 8) == "cuda:0 (");
  for (std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{4097}, std::size_t{5} << 20}) {
    auto buffer = device->allocate(bytes);
    REQUIRE(buffer.ok());
    CHECK((*buffer)->space() == Space::device);
    CHECK((*buffer)->size() == bytes);
    CHECK(reinterpret_cast<std::uintptr_t>((*buffer)->data()) % 4096 == 0);
    if (bytes == 0) continue;
    const auto values = read_device((*buffer)->data(), bytes);
    CHECK(std::count(values.begin(), values.end(), 0) == std::ssize(values));
  }
}

TEST_CASE("pinned memory is the host's: zeroed, at a 4 KiB boundary, and the device copies from it as it lies") {
  fresh();
  SteadyClock clock;
  auto device = open_gpu(clock);
  for (std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{4097}, std::size_t{5} << 20}) {
    auto buffer = device->allocate_pinned(bytes);
    REQUIRE(buffer.ok());
    CHECK((*buffer)->space() == Space::pinned);
    CHECK((*buffer)->size() == bytes);
    std::byte* const data = (*buffer)->data();
    CHECK(reinterpret_cast<std::uintptr_t>(data) % 4096 == 0);
    CHECK(std::count(data, data + bytes, std::byte{0}) == static_cast<std::ptrdiff_t>(bytes));
    cudaPointerAttributes attributes;
    REQUIRE(::cudaPointerGetAttributes(&attributes, data) == cudaSuccess);
    CHECK(attributes.type == cudaMemoryTypeHost);
    CHECK(attributes.devicePointer == data);  // kernels may use it
  }
}

TEST_CASE("copies between pinned and device memory make no host wait") {
  constexpr std::size_t n = 1 << 20;
  fresh();
  SteadyClock clock;
  auto device = open_gpu(clock);
  auto host = *device->allocate_pinned(n);
  auto memory = *device->allocate(n);
  std::memset(host->data(), 9, n);
  Gate go, issued, over;
  auto stream = device->create_stream("compute", 1);
  OpensAtEnd opens{go};
  Task t;
  t.work = [&](Parallel& parallel) {
    hold(parallel.queue(), go);
    copy(parallel.queue(), memory->data(), host->data(), n);
    copy(parallel.queue(), host->data(), memory->data(), n);
    issued.open();
  };
  t.on_done = [&](std::int64_t, std::int64_t) { over.open(); };
  stream->submit(std::move(t));
  issued.wait();  // while the device is held
  go.open();
  over.wait();
  CHECK(read_device(memory->data(), n) == std::vector<std::uint8_t>(n, 9));
#if TROUPE_CUDA_DOUBLE
  CHECK(cudart::stats().pageable_copies == 0);
#endif
}

TEST_CASE(
    "more memory than the GPU has is refused by name, with the bytes asked for, free and there, and harms nothing") {
  fresh();
  SteadyClock clock;
  auto device = open_gpu(clock);
  std::size_t free_bytes = 0, total = 0;
  REQUIRE(::cudaMemGetInfo(&free_bytes, &total) == cudaSuccess);
  for (const std::size_t bytes : {total + 1, ~std::size_t{0}}) {
    const auto buffer = device->allocate(bytes);
    REQUIRE_FALSE(buffer.ok());
    CHECK(buffer.status().code() == Code::exhausted);
    says(buffer.status(), "cannot allocate " + std::to_string(bytes) + " bytes of the device memory of cuda:0 (");
    says(buffer.status(), " of its " + std::to_string(total) + " bytes are free");
  }
  const auto pinned = device->allocate_pinned(~std::size_t{0});
  CHECK(pinned.status().code() == Code::exhausted);
  CHECK(device->allocate(1).ok());
  Gate over;
  auto stream = device->create_stream("compute", 1);
  Task t;
  Code in_work = Code::ok;  // the stream asks its thread for the last error
  t.work = [&](Parallel&) { in_work = device->allocate(total + 1).status().code(); };
  t.on_done = [&](std::int64_t, std::int64_t) { over.open(); };
  stream->submit(std::move(t));
  over.wait();
  CHECK(in_work == Code::exhausted);
}

TEST_CASE("a host that looks at memory of the device ends its process") {
  const Outcome outcome = run_victim("looks_at_device_memory");
  INFO(outcome.said);
  CHECK(outcome.exit_code != 0);
  CHECK(outcome.said.find("survived") == std::string::npos);
#if TROUPE_CUDA_DOUBLE
  CHECK(outcome.exit_code == cudart::touched_exit);
  CHECK(outcome.said.find(cudart::touched) != std::string::npos);
#endif
}

TEST_CASE("streams, buffers and fences may outlive their device") {
  fresh();
  SteadyClock clock;
  auto device = open_gpu(clock);
  auto memory = *device->allocate(4096);
  auto host = *device->allocate_pinned(4096);
  auto fence = device->create_fence();
  auto stream = device->create_stream("compute", 1);
  device.reset();
  Gate over;
  Task t;
  t.reaches = fence;
  t.work = [&](Parallel& parallel) {
    fill(parallel.queue(), memory->data(), 3, 4096);
    copy(parallel.queue(), host->data(), memory->data(), 4096);
  };
  t.on_done = [&](std::int64_t, std::int64_t) { over.open(); };
  stream->submit(std::move(t));
  over.wait();
  CHECK(host->data()[4095] == std::byte{3});
  stream.reset();
  memory.reset();
}

TEST_CASE("a GPU that is not there is refused, with the number of those that are") {
  fresh();
  SteadyClock clock;
  for (const int ordinal : {-1, 99}) {
    const auto device = CudaDevice::open(clock, {.ordinal = ordinal});
    CHECK(device.status().code() == Code::invalid);
    says(device.status(), "cuda:" + std::to_string(ordinal) + " is not there");
  }
}

TEST_CASE("a GPU of another architecture than the kernels' is refused, with both and what to do") {
  fresh();
  SteadyClock clock;
  const auto device = CudaDevice::open(clock, {.architecture = 35});
  CHECK(device.status().code() == Code::invalid);
  says(device.status(), "and the kernels of this build are for 3.5: build for this GPU");
}

#if TROUPE_CUDA_DOUBLE

TEST_CASE("no driver, one too old and no GPU are three errors, and each says what to do") {
  SteadyClock clock;
  const auto refused = [&](cudaError_t error, int driver) {
    cudart::reset({.count_error = error, .driver = driver});
    const auto device = CudaDevice::open(clock);
    CHECK(device.status().code() == Code::unavailable);
    return device.status();
  };
  says(refused(cudaErrorInsufficientDriver, 0), "no NVIDIA driver is loaded: this build needs one for CUDA 13.0");
  says(refused(cudaErrorInsufficientDriver, 12040), "the NVIDIA driver is for CUDA 12.4: this build needs one for");
  says(refused(cudaErrorNoDevice, 13000), "cudaErrorNoDevice (100)");
  says(refused(cudaErrorNoDevice, 13000), "look at nvidia-smi and at CUDA_VISIBLE_DEVICES");
  fresh();
}

TEST_CASE("CS-4 (death): the first error is told once, with GPU, call, error and the last task of each stream") {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    fresh(seed);
    SteadyClock clock;
    std::vector<Status> deaths;
    Gate dead;
    auto device = open_gpu(clock);
    auto memory = *device->allocate(4096);
    std::atomic<int> ended{0}, parts{0}, late_ran{0};
    auto owned = std::make_shared<int>(0);
    auto compute = device->create_stream("compute", 1);
    auto copies = device->create_stream("copies", 1);
    auto idle = device->create_stream("idle", 1);
    device->on_dead([&](Status why) {
      deaths.push_back(std::move(why));
      dead.open();
    });
    Gate before_over;
    Task before;
    before.name = "before";
    before.on_done = [&](std::int64_t, std::int64_t) { before_over.open(); };
    copies->submit(std::move(before));
    before_over.wait();
    cudart::fail_after(1);
    for (const char* name : {"B0", "B1", "B2"}) {
      Task t;
      t.name = name;
      t.order.turn = name[1] - '0';
      t.work = [&, owned](Parallel& parallel) {
        fill(parallel.queue(), memory->data(), 1, 4096);
        fill(parallel.queue(), memory->data(), 2, 4096);
        parallel.after([&parts] { ++parts; });
      };
      t.on_done = [&, owned](std::int64_t, std::int64_t) { ++ended; };
      compute->submit(std::move(t));
    }
    dead.wait();
    Task late;
    late.name = "late";
    late.on_start = [&] { ++late_ran; };
    late.on_done = [&](std::int64_t, std::int64_t) { ++late_ran; };
    idle->submit(std::move(late));
    for (Stream* s : {compute.get(), copies.get(), idle.get()}) s->quiesce();
    CHECK(owned.use_count() == 1);
    CHECK(ended == 0);
    CHECK(parts == 0);
    CHECK(late_ran == 0);
    REQUIRE(deaths.size() == 1);
    CHECK(deaths[0].code() == Code::internal);
    says(deaths[0], "cuda:0 (double of a GPU) can do no work any more: ");
    says(deaths[0], ": cudaErrorIllegalAddress (700): an illegal memory access was encountered; issued last: 'B");
    says(deaths[0], "'B0' on compute, 'before' (done) on copies, nothing on idle");
    const auto refused = device->allocate(1);
    CHECK(refused.status().message() == deaths[0].message());
    CHECK(device->allocate_pinned(1).status().message() == deaths[0].message());
  }
}

TEST_CASE(
    "CS-4: a function that is given to a GPU that is dead already is called, and one of a device that is gone is not") {
  fresh();
  SteadyClock clock;
  Gate told;
  auto device = open_gpu(clock);
  cudart::fail_after(0);
  CHECK_FALSE(device->allocate(1).ok());
  device->on_dead([&](Status why) {
    CHECK(why.message().find("cudaErrorIllegalAddress") != std::string::npos);
    told.open();
  });
  told.wait();
  device.reset();

  fresh();
  device = open_gpu(clock);
  std::atomic<int> calls{0};
  Gate issued;
  device->on_dead([&](Status) { ++calls; });
  auto stream = device->create_stream("compute", 1);
  auto memory = *device->allocate(4096);
  device.reset();
  cudart::fail_after(0);
  Task t;
  t.work = [&](Parallel& parallel) {
    fill(parallel.queue(), memory->data(), 1, 4096);
    issued.open();
  };
  t.on_done = [&](std::int64_t, std::int64_t) { ++calls; };
  stream->submit(std::move(t));
  issued.wait();
  stream->quiesce();
  CHECK(calls == 0);
}

TEST_CASE("a launch that is refused ends the use of the GPU by the name of its task, and no on_done tells success") {
  fresh();
  SteadyClock clock;
  Gate dead;
  std::string why;
  auto device = open_gpu(clock);
  std::atomic<int> ended{0};
  device->on_dead([&](Status s) {
    why = s.message();
    dead.open();
  });
  auto stream = device->create_stream("compute", 1);
  Task t;
  t.name = "F3 of block 7";
  t.work = [](Parallel&) { cudart::refuse_launch(cudaErrorInvalidConfiguration); };
  t.on_done = [&](std::int64_t, std::int64_t) { ++ended; };
  stream->submit(std::move(t));
  dead.wait();
  stream->quiesce();
  CHECK(ended == 0);
  CHECK(why.find("the work of 'F3 of block 7' on compute: cudaErrorInvalidConfiguration (9)") != std::string::npos);
}

TEST_CASE("death: a stream that waits for a fence of a task that was never issued whole goes on, and is quiesced") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    fresh(seed);
    SteadyClock clock;
    Gate dead, waits;
    auto device = open_gpu(clock);
    device->on_dead([&](Status) { dead.open(); });
    auto compute = device->create_stream("compute", 1);
    auto comm = device->create_stream("comm", 1);
    const auto fence = device->create_fence();
    Task t;
    t.reaches = fence;
    t.on_start = [&] {
      Task u;
      u.waits = {fence};
      u.on_start = [&] { waits.open(); };
      comm->submit(std::move(u));
    };
    t.work = [&](Parallel&) {
      waits.wait();
      cudart::refuse_launch(cudaErrorInvalidConfiguration);
    };
    compute->submit(std::move(t));
    dead.wait();
    comm->quiesce();
    compute->quiesce();
  }
}

#else

TEST_CASE("CS-4 (death): an illegal access is told once, with GPU, call, error and task, and the process can be left") {
  const Outcome outcome = run_victim("illegal_access");
  if (outcome.said.find("no kernel") != std::string::npos) return test::skip(outcome.said);
  INFO(outcome.said);
  CHECK(outcome.exit_code == 0);
  CHECK(outcome.said.find("dead: internal: cuda:0 (") != std::string::npos);
  CHECK(outcome.said.find("cudaErrorIllegalAddress (700)") != std::string::npos);
  CHECK(outcome.said.find("'store nowhere' on compute, nothing on copies") != std::string::npos);
  CHECK(outcome.said.find("deaths 1, ended 0, allocates: cuda:0 (") != std::string::npos);
  // Another process, this one, goes on.
  SteadyClock clock;
  CHECK(open_gpu(clock)->allocate(1).ok());
}

#endif
