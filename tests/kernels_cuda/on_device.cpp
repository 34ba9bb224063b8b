#include "on_device.h"

#include <doctest/doctest.h>

#include <cstring>

#include "tests/skip.h"

namespace troupe::kernels {

test::Device* device() {
  static std::string why;
  static const std::unique_ptr<test::Device> opened = test::open_device(why);
  if (!opened) test::skip(why);
  return opened.get();
}

namespace {

std::int64_t scratch_bytes(const OpDef& op, const Call& call) {
  const auto& rule = op.cuda.scratch_bytes ? op.cuda.scratch_bytes : op.scratch_bytes;
  std::vector<TensorType> in, out;
  for (const View& v : call.in) in.push_back({v.dtype, v.shape});
  for (const View& v : call.out) out.push_back({v.dtype, v.shape});
  return rule ? rule(in, out, *call.attrs) : 0;
}

void run(const OpDef& op, const Call& host, test::Device& device, std::size_t queue) {
  Call call = host;
  call.par = nullptr;
  call.queue = device.queue(queue);
  const auto bytes = [](const View& v) { return static_cast<std::size_t>(v.bytes()); };
  for (View& v : call.in) v.data = device.put(v.data, bytes(v), v.data);
  for (View& v : call.out) {
    v.data = device.put(v.data, bytes(v), v.data);
    if (v.peak) v.peak = reinterpret_cast<float*>(device.put(v.peak, sizeof(float), nullptr));
  }
  const std::vector<unsigned char> garbage(static_cast<std::size_t>(scratch_bytes(op, call)), 0xFF);
  call.scratch = {device.put(garbage.data(), garbage.size(), nullptr), garbage.size()};
  call.state = {device.put(host.state.data(), host.state.size(), nullptr), host.state.size()};
  op.cuda.issue(call);
  const std::string wrong = device.wait();
  REQUIRE_MESSAGE(wrong.empty(), op.name << ": " << wrong);
  for (std::size_t i = 0; i < call.in.size(); ++i) {
    std::vector<std::byte> now(bytes(call.in[i]));
    device.get(now.data(), call.in[i].data, now.size());
    REQUIRE_MESSAGE((now.empty() || std::memcmp(now.data(), host.in[i].data, now.size()) == 0),
                    op.name << " wrote its input " << i);
  }
  for (std::size_t i = 0; i < call.out.size(); ++i) {
    device.get(host.out[i].data, call.out[i].data, bytes(call.out[i]));
    if (call.out[i].peak)
      device.get(host.out[i].peak, reinterpret_cast<const std::byte*>(call.out[i].peak), sizeof(float));
  }
  device.get(host.state.data(), call.state.data(), host.state.size());
  device.release();
}

}  // namespace

OpDef on_device(const OpDef& op, test::Device& device, std::size_t queue) {
  OpDef other = op;
  other.cpu = [op, &device, queue](const Call& call) { run(op, call, device, queue); };
  return other;
}

}  // namespace troupe::kernels
