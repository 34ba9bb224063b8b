// A grid of CUDA threads on one host thread: every thread is a fiber, run in a seeded order and switched at barriers
// and warp collectives only. One source, two kinds of device: kernels include prelude.cuh, which includes this when
// nvcc does not compile it.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#define EMU_RAW __attribute__((no_sanitize("thread"), noinline))

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__) && defined(__x86_64__)
#define EMU_FAST 1
extern "C" void emu_switch(void** save, void* load);
asm(R"(
.text
.weak emu_switch
.type emu_switch,@function
emu_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
)");
#endif
namespace emu {
inline std::vector<std::unique_ptr<char[]>>& stacks() {
  static thread_local std::vector<std::unique_ptr<char[]>> s;
  return s;
}

struct Dim {
  unsigned x = 1, y = 1, z = 1;
};
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Fiber {
  Dim thread, block;
  unsigned rank = 0;  // within the block
  enum State { ready, at_block, at_warp, ended } state = ready;
  const void* where = nullptr;  // the barrier it waits at: its return address
  unsigned mask = 0;            // at_warp: who takes part
  bool orders = false;          // at_warp: __syncwarp orders memory, a shuffle does not
  std::uint64_t sent = 0;       // what it brings to the collective
  std::uint64_t got[32];        // what all brought
  ucontext_t context;
  void* sp = nullptr;
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
  std::unique_ptr<std::byte[]>
      shared;  // exactly as many bytes as the launch asks for: the address sanitizer sees an overrun
  const std::function<void()>* body = nullptr;
  ucontext_t scheduler;
  void* sp = nullptr;
  std::exception_ptr failure;
  Fiber* running = nullptr;
#if defined(__SANITIZE_THREAD__)
  void* tsan = nullptr;
#endif
#if defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
  const void* stack_low = nullptr;
  size_t stack_bytes = 0;
#endif
};

constexpr std::size_t stack_bytes = 128 * 1024;
EMU_RAW inline Block*& block() {
  static thread_local Block* b = nullptr;
  return b;
}
EMU_RAW inline Fiber& self() { return *block()->running; }

EMU_RAW inline void to_scheduler(Fiber& f, bool last = false) {
  Block& b = *block();
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(last ? nullptr : &f.fake_stack, b.stack_low, b.stack_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(b.tsan, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef EMU_FAST
  emu_switch(&f.sp, b.sp);
#else
  if (last) setcontext(&b.scheduler);
  else swapcontext(&f.context, &b.scheduler);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(f.fake_stack, &b.stack_low, &b.stack_bytes);
#endif
  (void)last;
}

EMU_RAW inline void entry() {
  Block& b = *block();
  Fiber& f = *b.running;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &b.stack_low, &b.stack_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(&b.grid);  // the launch happens before the kernel
#endif
  try {
    (*b.body)();
  } catch (...) {
    if (!b.failure) b.failure = std::current_exception();
  }
  f.state = Fiber::ended;
#if defined(__SANITIZE_THREAD__)
  __tsan_release(&b.size);  // the kernel happens before what follows it on the stream
#endif
  to_scheduler(f, true);
}

EMU_RAW inline void resume(Block& b, Fiber& f) {
  b.running = &f;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&b.fake_stack, f.stack.get(), stack_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
  b.tsan = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(f.tsan, __tsan_switch_to_fiber_no_sync);  // being run one after the other orders nothing
#endif
#ifdef EMU_FAST
  emu_switch(&b.sp, f.sp);
#else
  swapcontext(&b.scheduler, &f.context);
#endif
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(b.fake_stack, nullptr, nullptr);
#endif
}

inline std::string name(const Fiber& f) {
  return "thread " + std::to_string(f.rank) + " of block " + std::to_string(f.block.x) + "," +
         std::to_string(f.block.y);
}

/// Opens the block's barrier if all its threads have reached it.
EMU_RAW inline bool open_block(Block& b) {
  unsigned waiting = 0;
  const Fiber *first = nullptr, *gone = nullptr;
  for (auto& f : b.fibers) {
    if (f.state == Fiber::ended) gone = &f;
    if (f.state != Fiber::at_block) continue;
    ++waiting;
    if (!first) first = &f;
  }
  if (!first) return false;
  if (gone) throw Error(name(*first) + " waits at a __syncthreads that " + name(*gone) + " will never reach");
  if (waiting != b.fibers.size()) return false;
  for (auto& f : b.fibers)
    if (f.where != first->where)
      throw Error("threads wait at different __syncthreads: " + name(*first) + " and " + name(f));
  for (auto& f : b.fibers) f.state = Fiber::ready;
  return true;
}

/// Opens the collectives of the warp that begins at thread w that all their members have reached.
EMU_RAW inline bool open_warp(Block& b, std::size_t w) {
  const std::size_t lanes = std::min<std::size_t>(32, b.fibers.size() - w);
  unsigned waiting = 0;
  bool any = false;
  for (std::size_t l = 0; l < lanes; ++l)
    if (b.fibers[w + l].state == Fiber::at_warp) waiting |= 1u << l;
  for (std::size_t l = 0; l < lanes; ++l) {
    Fiber& f = b.fibers[w + l];
    if (f.state != Fiber::at_warp) continue;
    if (!(f.mask >> l & 1)) throw Error(name(f) + " calls a warp collective whose mask leaves it out");
    const unsigned members = f.mask & (lanes == 32 ? ~0u : (1u << lanes) - 1);
    if ((waiting & members) != members) continue;
    std::uint64_t all[32] = {};
    for (std::size_t m = 0; m < lanes; ++m)
      if (members >> m & 1) {
        Fiber& o = b.fibers[w + m];
        if (o.mask != f.mask || o.where != f.where)
          throw Error("lanes of one warp meet in different collectives: " + name(f) + " and " + name(o));
        all[m] = o.sent;
      }
    for (std::size_t m = 0; m < lanes; ++m)
      if (members >> m & 1) {
        std::memcpy(b.fibers[w + m].got, all, sizeof all);
        b.fibers[w + m].state = Fiber::ready;
      }
    waiting &= ~members;
    any = true;
  }
  return any;
}

struct Launch {
  Dim grid, block;
  std::size_t shared_bytes = 0;
  std::uint64_t seed = 0;
};

/// seed 0: ascending order of threads; 1: descending; else: random between any two barriers.
EMU_RAW inline void run_block(const Launch& l, Dim index, const std::function<void()>& body, std::uint64_t rng) {
  Block b;
  b.grid = l.grid;
  b.size = l.block;
  b.index = index;
  b.body = &body;
  b.shared.reset(new std::byte[l.shared_bytes]);
  std::memset(b.shared.get(), 0xFF, l.shared_bytes);  // NaN: nothing may be read that the kernel has not written
  b.fibers.resize(l.block.x * l.block.y * l.block.z);
  Block* outer = block();
  block() = &b;
#if defined(__SANITIZE_THREAD__)
  __tsan_release(&b.grid);
#endif
  for (unsigned i = 0; i < b.fibers.size(); ++i) {
    Fiber& f = b.fibers[i];
    f.rank = i;
    f.block = index;
    f.thread = {i % l.block.x, i / l.block.x % l.block.y, i / l.block.x / l.block.y};
    if (stacks().empty()) f.stack.reset(new char[stack_bytes]);
    else {
      f.stack = std::move(stacks().back());
      stacks().pop_back();
    }
#ifdef EMU_FAST
    auto* top = reinterpret_cast<void**>((reinterpret_cast<std::uintptr_t>(f.stack.get()) + stack_bytes) &
                                         ~std::uintptr_t{63}) -
                1;
    *--top = reinterpret_cast<void*>(&entry);
    top -= 6;
    f.sp = top;
#else
    getcontext(&f.context);
    f.context.uc_stack = {f.stack.get(), 0, stack_bytes};
    f.context.uc_link = nullptr;
    makecontext(&f.context, entry, 0);
#endif
#if defined(__SANITIZE_THREAD__)
    f.tsan = __tsan_create_fiber(0);
#endif
  }
  std::vector<unsigned> order(b.fibers.size());
  for (unsigned i = 0; i < order.size(); ++i) order[i] = l.seed == 1 ? unsigned(order.size()) - 1 - i : i;
  try {
    for (;;) {
      if (l.seed > 1)
        for (std::size_t i = order.size(); i > 1; --i) {
          rng ^= rng << 13, rng ^= rng >> 7, rng ^= rng << 17;
          std::swap(order[i - 1], order[rng % i]);
        }
      // Warp by warp, each as far as it can go: what one warp does not wait for, another has not done yet.
      std::vector<unsigned> warps;
      for (unsigned i : order)
        if (std::find(warps.begin(), warps.end(), i / 32) == warps.end()) warps.push_back(i / 32);
      bool ran = false;
      for (unsigned w : warps)
        for (bool more = true; more;) {
          more = false;
          for (unsigned i : order)
            if (i / 32 == w && b.fibers[i].state == Fiber::ready) {
              resume(b, b.fibers[i]);
              more = ran = true;
              if (b.failure) std::rethrow_exception(b.failure);
            }
          if (open_warp(b, w * 32)) more = true;
        }
      if (!open_block(b)) break;
      (void)ran;
    }
    for (auto& f : b.fibers)
      if (f.state != Fiber::ended)
        throw Error(name(f) + " waits for ever at a " +
                    (f.state == Fiber::at_block ? "__syncthreads" : "warp collective") + " that others do not reach");
  } catch (...) {
    b.failure = std::current_exception();
  }
#if defined(__SANITIZE_THREAD__)
  for (auto& f : b.fibers) __tsan_destroy_fiber(f.tsan);
  __tsan_acquire(&b.size);
#endif
  for (auto& f : b.fibers) stacks().push_back(std::move(f.stack));
  block() = outer;
  if (b.failure) std::rethrow_exception(b.failure);
}

EMU_RAW inline void run_grid(const Launch& l, const std::function<void()>& body) {
  const std::uint64_t n = std::uint64_t(l.grid.x) * l.grid.y * l.grid.z;
  for (std::uint64_t k = 0; k < n; ++k) {
    const std::uint64_t i = l.seed == 1 ? n - 1 - k : k;  // blocks in another order too
    run_block(l, {unsigned(i % l.grid.x), unsigned(i / l.grid.x % l.grid.y), unsigned(i / l.grid.x / l.grid.y)}, body,
              l.seed * 0x9E3779B97F4A7C15ull + i + 1);
  }
}

EMU_RAW inline void sync_block() {
  Fiber& f = self();
  f.where = __builtin_return_address(0);
  f.state = Fiber::at_block;
#if defined(__SANITIZE_THREAD__)
  __tsan_release(&block()->index);
#endif
  to_scheduler(f);
#if defined(__SANITIZE_THREAD__)
  __tsan_acquire(&block()->index);
#endif
}

EMU_RAW inline const std::uint64_t* meet(unsigned mask, std::uint64_t value, bool orders) {
  Fiber& f = self();
  f.where = __builtin_return_address(0);
  f.mask = mask;
  f.sent = value;
  f.orders = orders;
  f.state = Fiber::at_warp;
#if defined(__SANITIZE_THREAD__)
  void* warp = &block()->fibers[f.rank / 32 * 32].got;
  if (orders) __tsan_release(warp);
#endif
  to_scheduler(f);
#if defined(__SANITIZE_THREAD__)
  if (orders) __tsan_acquire(warp);
#endif
  return f.got;
}

}  // namespace emu
