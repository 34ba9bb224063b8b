#include "devices/fibers/block.h"

#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
// The bookkeeping of fibers is not what ThreadSanitizer is to look at.
#define UNSEEN __attribute__((no_sanitize("thread"), noinline))

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__) && defined(__x86_64__)
#define TROUPE_OWN_SWITCH 1
// Ten times as fast as swapcontext, which asks the system for the signal mask.
extern "C" void troupe_switch_fiber(void** save, void* load);
asm(R"(
.text
.weak troupe_switch_fiber
.type troupe_switch_fiber,@function
troupe_switch_fiber:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
)");
#endif

namespace troupe::fibers {
namespace {

constexpr std::size_t stack_bytes = 128 * 1024;
constexpr unsigned warp = 32;

struct Fiber {
  Dim thread;
  unsigned rank = 0;  ///< within the block
  enum class State : std::uint8_t { ready, at_block, at_warp, ended } state = State::ready;
  const void* where = nullptr;  ///< the barrier it waits at
  unsigned mask = 0;            ///< at_warp: the lanes that take part
  std::uint64_t sent = 0;       ///< what it brings to the collective
  std::uint64_t got[warp];      ///< what all brought
#if defined(TROUPE_OWN_SWITCH)
  void* stack_pointer = nullptr;
#else
  ucontext_t context;
#endif
  std::unique_ptr<char[]> stack;
#if defined(__SANITIZE_THREAD__)
  void* tsan = nullptr;
#endif
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
#endif
};

struct Block {
  Dim grid, size, index;
  std::vector<Fiber> fibers;
  std::unique_ptr<std::byte[]> shared;
  const std::function<void()>* body = nullptr;
#if defined(TROUPE_OWN_SWITCH)
  void* stack_pointer = nullptr;
#else
  ucontext_t scheduler;
#endif
  std::exception_ptr failure;
  Fiber* running = nullptr;
#if defined(__SANITIZE_THREAD__)
  void* tsan = nullptr;
#endif
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  const void* stack_low = nullptr;
  std::size_t stack_size = 0;
#endif
};

UNSEEN Block*& block() {
  static thread_local Block* current = nullptr;
  return current;
}
UNSEEN Fiber& self() { return *block()->running; }

/// Stacks of blocks that have ended.
UNSEEN std::vector<std::unique_ptr<char[]>>& free_stacks() {
  static thread_local std::vector<std::unique_ptr<char[]>> stacks;
  return stacks;
}

UNSEEN void to_scheduler(Fiber& f, [[maybe_unused]] bool last = false) {
  Block& b = *block();
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(last ? nullptr : &f.fake_stack, b.stack_low, b.stack_size);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(b.tsan, __tsan_switch_to_fiber_no_sync);
#endif
#if defined(TROUPE_OWN_SWITCH)
  troupe_switch_fiber(&f.stack_pointer, b.stack_pointer);
#else
  if (last) setcontext(&b.scheduler);
  else swapcontext(&f.context, &b.scheduler);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(f.fake_stack, &b.stack_low, &b.stack_size);
#endif
}

UNSEEN void begin_fiber() {
  Block& b = *block();
  Fiber& f = *b.running;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &b.stack_low, &b.stack_size);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(&b.grid);  // the launch happens before the kernel
#endif
  try {
    (*b.body)();
  } catch (...) {
    if (!b.failure) b.failure = std::current_exception();
  }
  f.state = Fiber::State::ended;
#if defined(__SANITIZE_THREAD__)
  __tsan_release(&b.size);  // the kernel happens before what follows it on the stream
#endif
  to_scheduler(f, true);
}

UNSEEN void resume(Block& b, Fiber& f) {
  b.running = &f;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&b.fake_stack, f.stack.get(), stack_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
  b.tsan = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(f.tsan, __tsan_switch_to_fiber_no_sync);  // to run one after the other orders nothing
#endif
#if defined(TROUPE_OWN_SWITCH)
  troupe_switch_fiber(&b.stack_pointer, f.stack_pointer);
#else
  swapcontext(&b.scheduler, &f.context);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(b.fake_stack, nullptr, nullptr);
#endif
}

std::string name(const Block& b, const Fiber& f) {
  return "thread " + std::to_string(f.rank) + " of block " + std::to_string(b.index.x) + "," +
         std::to_string(b.index.y);
}

/// Opens the block's barrier where all its threads have reached it.
UNSEEN bool open_block(Block& b) {
  std::size_t waiting = 0;
  const Fiber *first = nullptr, *gone = nullptr;
  for (const Fiber& f : b.fibers) {
    if (f.state == Fiber::State::ended) gone = &f;
    if (f.state != Fiber::State::at_block) continue;
    ++waiting;
    if (!first) first = &f;
  }
  if (!first) return false;
  if (gone) throw Error(name(b, *first) + " waits at a barrier that " + name(b, *gone) + " will never reach");
  if (waiting != b.fibers.size()) return false;
  for (Fiber& f : b.fibers) {
    if (f.where != first->where)
      throw Error("threads wait at different barriers: " + name(b, *first) + " and " + name(b, f));
    f.state = Fiber::State::ready;
  }
  return true;
}

/// Opens the collectives of the warp that begins at thread `begin` that all their members have reached.
UNSEEN bool open_warp(Block& b, std::size_t begin) {
  const std::size_t lanes = std::min<std::size_t>(warp, b.fibers.size() - begin);
  const unsigned all_lanes = lanes == warp ? ~0u : (1u << lanes) - 1;
  unsigned waiting = 0;
  bool any = false;
  for (std::size_t l = 0; l < lanes; ++l)
    if (b.fibers[begin + l].state == Fiber::State::at_warp) waiting |= 1u << l;
  for (std::size_t l = 0; l < lanes; ++l) {
    Fiber& f = b.fibers[begin + l];
    if (f.state != Fiber::State::at_warp) continue;
    if (!(f.mask >> l & 1)) throw Error(name(b, f) + " calls a collective of its warp whose mask leaves it out");
    const unsigned members = f.mask & all_lanes;
    if ((waiting & members) != members) continue;
    std::uint64_t all[warp] = {};
    for (std::size_t m = 0; m < lanes; ++m) {
      if (!(members >> m & 1)) continue;
      const Fiber& other = b.fibers[begin + m];
      if (other.mask != f.mask || other.where != f.where)
        throw Error("lanes of one warp meet in different collectives: " + name(b, f) + " and " + name(b, other));
      all[m] = other.sent;
    }
    for (std::size_t m = 0; m < lanes; ++m) {
      if (!(members >> m & 1)) continue;
      std::memcpy(b.fibers[begin + m].got, all, sizeof all);
      b.fibers[begin + m].state = Fiber::State::ready;
    }
    waiting &= ~members;
    any = true;
  }
  return any;
}

UNSEEN void set_up(Block& b, Fiber& f, unsigned rank) {
  f.rank = rank;
  f.thread = {rank % b.size.x, rank / b.size.x % b.size.y, rank / b.size.x / b.size.y};
  auto& stacks = free_stacks();
  if (stacks.empty()) {
    f.stack.reset(new char[stack_bytes]);
  } else {
    f.stack = std::move(stacks.back());
    stacks.pop_back();
  }
#if defined(TROUPE_OWN_SWITCH)
  const auto end = (reinterpret_cast<std::uintptr_t>(f.stack.get()) + stack_bytes) & ~std::uintptr_t{63};
  auto* top = reinterpret_cast<void**>(end) - 1;
  *--top = reinterpret_cast<void*>(&begin_fiber);
  f.stack_pointer = top - 6;  // six registers, garbage
#else
  getcontext(&f.context);
  f.context.uc_stack = {f.stack.get(), 0, stack_bytes};
  f.context.uc_link = nullptr;
  makecontext(&f.context, begin_fiber, 0);
#endif
#if defined(__SANITIZE_THREAD__)
  f.tsan = __tsan_create_fiber(0);
#endif
}

/// Runs all threads to their end, from barrier to barrier.
UNSEEN void run_threads(Block& b, std::uint64_t seed, std::uint64_t random) {
  std::vector<unsigned> order(b.fibers.size()), warps;
  for (unsigned i = 0; i < order.size(); ++i) order[i] = seed == 1 ? static_cast<unsigned>(order.size()) - 1 - i : i;
  do {
    for (std::size_t i = order.size(); seed > 1 && i > 1; --i) {
      random ^= random << 13, random ^= random >> 7, random ^= random << 17;
      std::swap(order[i - 1], order[random % i]);
    }
    warps.clear();
    for (const unsigned i : order)
      if (std::find(warps.begin(), warps.end(), i / warp) == warps.end()) warps.push_back(i / warp);
    std::vector<std::vector<unsigned>> lanes(warps.size());
    std::vector<std::size_t> place((b.fibers.size() + warp - 1) / warp);
    for (std::size_t w = 0; w < warps.size(); ++w) place[warps[w]] = w;
    for (const unsigned i : order) lanes[place[i / warp]].push_back(i);
    for (std::size_t w = 0; w < warps.size(); ++w)
      for (bool more = true; more;) {
        more = false;
        for (const unsigned i : lanes[w]) {
          if (b.fibers[i].state != Fiber::State::ready) continue;
          resume(b, b.fibers[i]);
          more = true;
          if (b.failure) std::rethrow_exception(b.failure);
        }
        if (open_warp(b, std::size_t{warps[w]} * warp)) more = true;
      }
  } while (open_block(b));
  for (const Fiber& f : b.fibers)
    if (f.state != Fiber::State::ended) throw Error(name(b, f) + " waits for lanes of its warp that do not come");
}

UNSEEN void run_block(const Launch& launch, Dim index, const std::function<void()>& body, std::uint64_t random) {
  Block b;
  b.grid = launch.grid, b.size = launch.block, b.index = index, b.body = &body;
  b.shared.reset(new std::byte[launch.shared_bytes]);
  std::memset(b.shared.get(), 0xFF, launch.shared_bytes);
  b.fibers = std::vector<Fiber>(launch.block.x * launch.block.y * launch.block.z);
  Block* outer = block();
  block() = &b;
#if defined(__SANITIZE_THREAD__)
  __tsan_release(&b.grid);
#endif
  for (unsigned i = 0; i < b.fibers.size(); ++i) set_up(b, b.fibers[i], i);
  try {
    run_threads(b, launch.order.seed, random);
  } catch (...) {
    b.failure = std::current_exception();
  }
#if defined(__SANITIZE_THREAD__)
  for (Fiber& f : b.fibers) __tsan_destroy_fiber(f.tsan);
  __tsan_acquire(&b.size);
#endif
  for (Fiber& f : b.fibers) free_stacks().push_back(std::move(f.stack));
  block() = outer;
  if (b.failure) std::rethrow_exception(b.failure);
}

}  // namespace

UNSEEN void run_grid(const Launch& launch, const std::function<void()>& body) {
  const std::uint64_t n = std::uint64_t{launch.grid.x} * launch.grid.y * launch.grid.z;
  for (std::uint64_t k = 0; k < n; ++k) {
    const std::uint64_t i = launch.order.seed == 1 ? n - 1 - k : k;
    const Dim index{static_cast<unsigned>(i % launch.grid.x), static_cast<unsigned>(i / launch.grid.x % launch.grid.y),
                    static_cast<unsigned>(i / launch.grid.x / launch.grid.y)};
    run_block(launch, index, body, launch.order.seed * 0x9E3779B97F4A7C15ull + i + 1);
  }
}

UNSEEN Dim thread_index() { return self().thread; }
UNSEEN Dim block_index() { return block()->index; }
UNSEEN Dim block_size() { return block()->size; }
UNSEEN Dim grid_size() { return block()->grid; }
UNSEEN std::byte* shared_memory() { return block()->shared.get(); }

UNSEEN void sync_block(const void* where) {
  Fiber& f = self();
  f.where = where;
  f.state = Fiber::State::at_block;
#if defined(__SANITIZE_THREAD__)
  __tsan_release(&block()->index);
#endif
  to_scheduler(f);
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(&block()->index);
#endif
}

UNSEEN const std::uint64_t* meet(const void* where, unsigned mask, std::uint64_t value, [[maybe_unused]] bool orders) {
  Fiber& f = self();
  f.where = where;
  f.mask = mask;
  f.sent = value;
  f.state = Fiber::State::at_warp;
#if defined(__SANITIZE_THREAD__)
  void* of_warp = &block()->fibers[f.rank / warp * warp].got;
  if (orders) __tsan_release(of_warp);
#endif
  to_scheduler(f);
#if defined(__SANITIZE_THREAD__)
  if (orders) __tsan_acquire(of_warp);
#endif
  return f.got;
}

}  // namespace troupe::fibers
