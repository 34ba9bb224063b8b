#include <cstdlib>
#include <cstring>

#include "device_memory.h"
#include "devices/fibers/block.h"

namespace troupe::test {

namespace {

class Fibers final : public Device {
 public:
  Fibers() {
    const char* wanted = std::getenv("TROUPE_FIBER_ORDERS");
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    constexpr int usual = 1;  // fibers that sanitizers watch are slow to switch
#else
    constexpr int usual = 3;
#endif
    const int orders = wanted ? std::atoi(wanted) : usual;
    for (int seed = 0; seed < orders; ++seed) orders_.push_back({static_cast<std::uint64_t>(seed)});
  }
  std::byte* put(const void* host, std::size_t bytes, const void* like) override {
    // Memory that ends where the argument ends: AddressSanitizer sees an access beyond.
    const auto shift = reinterpret_cast<std::uintptr_t>(like) % 256;
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(256, (shift + bytes + 255) / 256 * 256));
    auto* exact = static_cast<std::byte*>(std::realloc(memory, shift + bytes + 1));
    if (reinterpret_cast<std::uintptr_t>(exact) % 256 != 0) {  // realloc has moved it
      std::free(exact);
      exact = static_cast<std::byte*>(std::aligned_alloc(256, (shift + bytes + 255) / 256 * 256));
    }
    memory_.push_back(exact);
    if (bytes > 0) std::memcpy(exact + shift, host, bytes);
    return exact + shift;
  }
  std::string wait() override { return {}; }
  void get(void* host, const std::byte* device, std::size_t bytes) override {
    if (bytes > 0) std::memcpy(host, device, bytes);
  }
  void release() override {
    for (auto* p : memory_) std::free(p);
    memory_.clear();
  }
  void* queue(std::size_t i) override { return &orders_[i]; }
  std::size_t queues() const override { return orders_.size(); }

 private:
  std::vector<fibers::Order> orders_;
  std::vector<std::byte*> memory_;
};

}  // namespace

std::unique_ptr<Device> open_device(std::string&) { return std::make_unique<Fibers>(); }

}  // namespace troupe::test
