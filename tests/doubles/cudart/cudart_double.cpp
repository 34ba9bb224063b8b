#include "tests/doubles/cudart/cudart_double.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

/// What is kept of an event when its handle is destroyed while streams wait for it.
struct EventState {
  bool timed = true;
  std::uint64_t asked = 0, reached = 0;  ///< records asked for, and reached
  std::int64_t ns = 0;                   ///< of the last record that was reached
};

/// A piece of a stream's work.
struct Piece {
  enum Kind { work, host, record, wait };
  Kind kind = work;
  std::function<void()> run;  ///< of work and host
  std::shared_ptr<EventState> event;
  std::uint64_t number = 0;  ///< of the record
};

}  // namespace

struct CUevent_st {
  std::shared_ptr<EventState> state;
};

struct CUstream_st {
  int number = 0;
  int priority = 0;
  std::deque<Piece> pieces;
  bool at_host = false;    ///< its first piece, taken out, runs in the thread of host functions
  bool destroyed = false;  ///< goes when its pieces have run
  bool idle() const { return pieces.empty() && !at_host; }
};

namespace {

using troupe::test::cudart::Options;
using troupe::test::cudart::Stats;

constexpr std::size_t arena_bytes = std::size_t{1} << 30;
constexpr std::size_t grain = 4096, start = 256;  // blocks begin `start` behind a page: aligned to 256, not to a page
constexpr std::size_t taken_at_once = 64 << 10;   // of pageable memory: the bytes are taken before the call returns

struct Double {
  std::mutex mutex;
  std::condition_variable changed;  ///< a host function has ended
  Options options;
  std::byte* const arena;
  std::map<std::byte*, std::size_t> blocks;            ///< of the arena
  std::map<const std::byte*, std::size_t> registered;  ///< pinned host memory
  std::set<void*> host_allocated;                      ///< those of cudaHostAlloc
  std::vector<std::unique_ptr<CUstream_st>> streams;
  std::set<CUevent_st*> events;
  int created = 0;  ///< streams so far
  int resets = 0;
  std::uint64_t random = 1;
  cudaError_t sticky = cudaSuccess;
  std::int64_t fail_at = -1;
  cudaError_t fail_with = cudaErrorIllegalAddress;
  Stats stats;
  std::deque<std::pair<CUstream_st*, std::function<void()>>> host_functions;
  std::condition_variable host_wake;

  Double()
      : arena(static_cast<std::byte*>(
            ::mmap(nullptr, arena_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {
    if (arena == MAP_FAILED) std::abort();
    std::thread([this] { serve_host_functions(); }).detach();
  }
  [[noreturn]] void serve_host_functions();
  std::uint64_t draw(std::uint64_t below) {
    random ^= random << 13, random ^= random >> 7, random ^= random << 17;
    return (random >> 11) % below;
  }
};

thread_local cudaError_t last_error = cudaSuccess;
thread_local bool in_host_function = false;

/// Never destroyed: its thread runs until the process ends.
Double& the() {
  static auto* made = new Double;
  return *made;
}

using Lock = std::unique_lock<std::mutex>;

cudaError_t say(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

bool in_arena(const void* p) {
  const auto* b = static_cast<const std::byte*>(p);
  return b >= the().arena && b < the().arena + arena_bytes;
}

/// Not what a test's framework has set since: called with each allocation.
void watch_arena() {
  struct sigaction action {};
  action.sa_sigaction = [](int, siginfo_t* info, void*) {
    if (in_arena(info->si_addr)) {
      using troupe::test::cudart::touched;
      static_cast<void>(!::write(2, touched, sizeof touched - 1));
      ::_exit(troupe::test::cudart::touched_exit);
    }
    ::signal(SIGSEGV, SIG_DFL);  // comes again
  };
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGSEGV, &action, nullptr);
}

void as_device(const std::function<void()>& work) {
  ::mprotect(the().arena, arena_bytes, PROT_READ | PROT_WRITE);
  work();
  ::mprotect(the().arena, arena_bytes, PROT_NONE);
}

void drop_all() {
  Double& d = the();
  for (auto& s : d.streams) s->pieces.clear();
  for (auto& [stream, function] : d.host_functions) stream->at_host = false;
  d.host_functions.clear();
}

bool can_run(const CUstream_st& s) {
  if (s.pieces.empty() || s.at_host) return false;
  const Piece& p = s.pieces.front();
  return p.kind != Piece::wait || p.event->reached >= p.number;
}

/// Device work, and host functions, fail at the injected one; the rest does not run.
bool fails() {
  Double& d = the();
  if (d.fail_at < 0 || d.fail_at-- > 0) return false;
  d.sticky = d.fail_with;
  drop_all();
  return true;
}

void run_first(CUstream_st& s) {
  Double& d = the();
  Piece piece = std::move(s.pieces.front());
  s.pieces.pop_front();
  switch (piece.kind) {
    case Piece::work:
      if (fails()) return;
      as_device(piece.run);
      ++d.stats.pieces;
      break;
    case Piece::host:
      if (fails()) return;
      s.at_host = true;
      d.host_functions.emplace_back(&s, std::move(piece.run));
      d.host_wake.notify_one();
      break;
    case Piece::record:
      piece.event->reached = std::max(piece.event->reached, piece.number);
      piece.event->ns = std::chrono::steady_clock::now().time_since_epoch().count() / 32 * 32;
      break;
    case Piece::wait: break;
  }
}

void remove_destroyed() {
  std::erase_if(the().streams, [](const auto& s) { return s->destroyed && s->idle(); });
}

/// Runs a piece; false: none can run.
bool progress() {
  Double& d = the();
  std::vector<CUstream_st*> can, last;
  for (auto& s : d.streams)
    if (can_run(*s)) (s->number == d.options.starve ? last : can).push_back(s.get());
  if (can.empty()) can = std::move(last);
  if (can.empty()) return false;
  run_first(*can[d.draw(can.size())]);
  remove_destroyed();
  return true;
}

/// A look at the device, which goes on meanwhile, or does not.
void look() {
  for (std::uint64_t n = the().draw(4); n > 0; --n) progress();
}

/// Lets the device go on until `reached`. What is asked for is always reached: a wait names a record that was issued
/// before it.
template <class Reached>
void let_run_until(Lock& lock, Reached reached) {
  Double& d = the();
  while (d.sticky == cudaSuccess && !reached())
    if (!progress()) d.changed.wait(lock);  // for a host function
}

bool all_idle() {
  return std::all_of(the().streams.begin(), the().streams.end(), [](const auto& s) { return s->idle(); });
}

[[noreturn]] void Double::serve_host_functions() {
  in_host_function = true;
  ::pthread_setname_np(::pthread_self(), "double host fn");
  Lock lock(mutex);
  for (;;) {
    host_wake.wait(lock, [&] { return !host_functions.empty(); });
    auto [stream, run] = std::move(host_functions.front());
    host_functions.pop_front();
    const int resets_before = resets;
    lock.unlock();
    run();
    run = nullptr;
    lock.lock();
    if (resets != resets_before) continue;  // its stream is gone
    ++stats.pieces;
    stream->at_host = false;
    remove_destroyed();
    changed.notify_all();
  }
}

cudaError_t push(cudaStream_t stream, Piece piece) {
  if (!stream) {
    std::fprintf(stderr, "cudart double: the default stream is left out\n");
    std::abort();
  }
  stream->pieces.push_back(std::move(piece));
  return cudaSuccess;
}

/// The block of the arena that has [p, p + n) whole.
bool in_block(const void* p, std::size_t n) {
  Double& d = the();
  auto* b = static_cast<std::byte*>(const_cast<void*>(p));
  auto it = d.blocks.upper_bound(b);
  if (it == d.blocks.begin()) return false;
  --it;
  return b + n <= it->first + it->second;
}

bool is_pinned(const void* p) {
  Double& d = the();
  const auto* b = static_cast<const std::byte*>(p);
  auto it = d.registered.upper_bound(b);
  if (it == d.registered.begin()) return false;
  --it;
  return b < it->first + it->second;
}

struct Name {
  cudaError_t error;
  const char *name, *text;
};
constexpr Name names[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
};

}  // namespace

/// Locks, and answers for a call inside a host function, or one after a sticky error.
#define ENTER                                              \
  if (in_host_function) return say(cudaErrorNotPermitted); \
  Double& d = the();                                       \
  Lock lock(d.mutex);                                      \
  if (d.sticky != cudaSuccess) return say(d.sticky)

namespace troupe::test::cudart {

void reset(Options options) {
  Double& d = the();
  Lock lock(d.mutex);
  if (d.sticky == cudaSuccess) let_run_until(lock, all_idle);
  drop_all();
  ++d.resets;
  d.options = options;
  d.blocks.clear();
  d.registered.clear();
  d.streams.clear();
  for (CUevent_st* event : d.events) delete event;
  d.events.clear();
  d.created = 0;
  d.random = options.seed * 0x9E3779B97F4A7C15ull | 1;
  d.sticky = cudaSuccess;
  d.fail_at = -1;
  d.stats = {};
  last_error = cudaSuccess;
}

void fail_after(std::int64_t n, cudaError_t error) {
  Lock lock(the().mutex);
  the().fail_at = n;
  the().fail_with = error;
}

void launch(cudaStream_t stream, std::function<void()> kernel) {
  Lock lock(the().mutex);
  if (the().sticky != cudaSuccess) return void(say(the().sticky));
  push(stream, {Piece::work, std::move(kernel), nullptr, 0});
}

void refuse_launch(cudaError_t error) { last_error = error; }

Stats stats() {
  Lock lock(the().mutex);
  return the().stats;
}

}  // namespace troupe::test::cudart

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  ENTER;
  if (d.options.count_error != cudaSuccess) return say(d.options.count_error);
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  Lock lock(the().mutex);
  *version = the().options.driver;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  ENTER;
  return say(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  ENTER;
  if (device != 0) return say(cudaErrorInvalidDevice);
  std::memset(properties, 0, sizeof *properties);
  std::strcpy(properties->name, "double of a GPU");
  properties->major = d.options.major;
  properties->minor = d.options.minor;
  properties->totalGlobalMem = d.options.memory_bytes;
  properties->warpSize = 32;
  properties->multiProcessorCount = 132;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total) {
  ENTER;
  std::size_t used = 0;
  for (const auto& block : d.blocks) used += block.second;
  *total = d.options.memory_bytes;
  *free_bytes = *total - used;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
  ENTER;
  watch_arena();
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  std::size_t used = 0;
  for (const auto& block : d.blocks) used += block.second;
  if (bytes > d.options.memory_bytes - std::min(used, d.options.memory_bytes)) return say(cudaErrorMemoryAllocation);
  const std::size_t room = start + (bytes + grain - 1) / grain * grain + grain;  // a page between: no block follows
  std::byte* at = d.arena;
  for (const auto& [block, size] : d.blocks) {  // the first gap
    if (static_cast<std::size_t>(block - at) >= room) break;
    at = d.arena + (static_cast<std::size_t>(block - d.arena) + size + grain) / grain * grain + grain;
  }
  if (room > static_cast<std::size_t>(d.arena + arena_bytes - at)) return say(cudaErrorMemoryAllocation);
  *pointer = at + start;
  d.blocks[at + start] = bytes;
  as_device([&] { std::memset(at + start, 0xFB, bytes); });
  return cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  ENTER;
  if (!pointer) return cudaSuccess;
  const auto it = d.blocks.find(static_cast<std::byte*>(pointer));
  if (it == d.blocks.end()) return say(cudaErrorInvalidValue);
  let_run_until(lock, all_idle);
  if (d.sticky != cudaSuccess) return say(d.sticky);
  as_device([&] { std::memset(it->first, 0xFD, it->second); });
  d.blocks.erase(it);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  ENTER;
  *pointer = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  d.registered[static_cast<std::byte*>(*pointer)] = bytes;
  d.host_allocated.insert(*pointer);
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* pointer) {
  ENTER;
  if (!d.host_allocated.contains(pointer)) return say(cudaErrorInvalidValue);
  let_run_until(lock, all_idle);
  if (d.sticky != cudaSuccess) return say(d.sticky);
  d.host_allocated.erase(pointer);
  d.registered.erase(static_cast<std::byte*>(pointer));
  std::free(pointer);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* pointer, std::size_t bytes, unsigned) {
  ENTER;
  if (!pointer || bytes == 0) return say(cudaErrorInvalidValue);
  if (is_pinned(pointer)) return say(cudaErrorHostMemoryAlreadyRegistered);
  d.registered[static_cast<std::byte*>(pointer)] = bytes;
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* pointer) {
  ENTER;
  if (!d.registered.contains(static_cast<std::byte*>(pointer))) return say(cudaErrorHostMemoryNotRegistered);
  let_run_until(lock, all_idle);
  if (d.sticky != cudaSuccess) return say(d.sticky);
  d.registered.erase(static_cast<std::byte*>(pointer));
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  ENTER;
  std::memset(attributes, 0, sizeof *attributes);
  attributes->type = in_block(pointer, 1) ? cudaMemoryTypeDevice
                     : is_pinned(pointer) ? cudaMemoryTypeHost
                                          : cudaMemoryTypeUnregistered;
  if (attributes->type != cudaMemoryTypeUnregistered) attributes->devicePointer = const_cast<void*>(pointer);
  if (attributes->type == cudaMemoryTypeHost) attributes->hostPointer = const_cast<void*>(pointer);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  ENTER;
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int priority) {
  ENTER;
  auto made = std::make_unique<CUstream_st>();
  made->number = d.created++;
  made->priority = priority;
  *stream = d.streams.emplace_back(std::move(made)).get();
  return cudaSuccess;
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  ENTER;
  *priority = stream->priority;
  return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  ENTER;
  look();
  if (d.sticky != cudaSuccess) return say(d.sticky);
  return stream->idle() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  ENTER;
  let_run_until(lock, [&] { return stream->idle(); });
  return say(d.sticky);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  ENTER;
  stream->destroyed = true;
  remove_destroyed();
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  ENTER;
  *event = new CUevent_st{std::make_shared<EventState>()};
  (*event)->state->timed = (flags & cudaEventDisableTiming) == 0;
  d.events.insert(*event);
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  ENTER;
  if (d.events.erase(event) == 0) return say(cudaErrorInvalidResourceHandle);
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  ENTER;
  if (!event) return say(cudaErrorInvalidResourceHandle);
  return push(stream, {Piece::record, nullptr, event->state, ++event->state->asked});
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  ENTER;
  if (!event) return say(cudaErrorInvalidResourceHandle);
  return push(stream, {Piece::wait, nullptr, event->state, event->state->asked});
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  ENTER;
  if (!event) return say(cudaErrorInvalidResourceHandle);
  const auto reached = [&] { return event->state->reached == event->state->asked; };
  if (!reached()) look();
  if (d.sticky != cudaSuccess) return say(d.sticky);
  return reached() ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  ENTER;
  if (!event) return say(cudaErrorInvalidResourceHandle);
  let_run_until(lock, [&] { return event->state->reached == event->state->asked; });
  return say(d.sticky);
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
  ENTER;
  for (const cudaEvent_t event : {from, to}) {
    if (!event || !event->state->timed || event->state->asked == 0) return say(cudaErrorInvalidResourceHandle);
    if (event->state->reached < event->state->asked) return cudaErrorNotReady;
  }
  *ms = static_cast<float>(static_cast<double>(to->state->ns - from->state->ns) * 1e-6);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  ENTER;
  if (bytes == 0) return cudaSuccess;
  const bool to_device = in_arena(to), from_device = in_arena(from);
  if ((to_device && !in_block(to, bytes)) || (from_device && !in_block(from, bytes))) return say(cudaErrorInvalidValue);
  const bool to_pageable = !to_device && !is_pinned(to), from_pageable = !from_device && !is_pinned(from);
  const bool says_to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool says_from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  if ((says_to_device && to_pageable) || (says_from_device && from_pageable)) return say(cudaErrorInvalidValue);
  d.stats.pageable_copies += to_pageable || from_pageable;
  if (from_pageable && !to_pageable && bytes <= taken_at_once) {
    const auto* begin = static_cast<const std::byte*>(from);
    return push(stream, {Piece::work,
                         [to, taken = std::vector<std::byte>(begin, begin + bytes)] {
                           std::memcpy(to, taken.data(), taken.size());
                         },
                         nullptr, 0});
  }
  push(stream, {Piece::work, [=] { std::memmove(to, from, bytes); }, nullptr, 0});
  if (to_pageable || from_pageable) let_run_until(lock, [&] { return stream->idle(); });
  return say(d.sticky);
}

cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  ENTER;
  if (bytes == 0) return cudaSuccess;
  if (!in_block(to, bytes) && !is_pinned(to)) return say(cudaErrorInvalidValue);
  return push(stream, {Piece::work, [=] { std::memset(to, value, bytes); }, nullptr, 0});
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
  ENTER;
  return push(stream, {Piece::host, [=] { function(argument); }, nullptr, 0});
}

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }

cudaError_t cudaPeekAtLastError() { return last_error; }

const char* cudaGetErrorName(cudaError_t error) {
  for (const Name& n : names)
    if (n.error == error) return n.name;
  return "an error without a name in the double";
}

const char* cudaGetErrorString(cudaError_t error) {
  for (const Name& n : names)
    if (n.error == error) return n.text;
  return "an error without a text in the double";
}

}  // extern "C"
