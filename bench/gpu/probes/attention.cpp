// cuDNN's fused attention: plans and workspaces without a device (from two files of properties) and with it, rates, and
// whether results have the same bits in every run. Arguments: a file of properties written by hand, one written by
// cuDNN.
#include <cstring>
#include <fstream>
#include <iterator>

#include "attention_graph.h"

using probe::fact, probe::text;
using bf16 = std::uint16_t;

namespace {

using namespace attention;

std::shared_ptr<fe::DeviceProperties> properties_of(const char* path) {
  std::ifstream f(path);
  const std::string json((std::istreambuf_iterator<char>(f)), {});
  auto p = std::make_shared<fe::DeviceProperties>();
  auto e = p->deserialize(std::vector<std::uint8_t>(json.begin(), json.end()));
  if (e.is_good()) return p;
  fact(text("properties of %s", path), e.get_message());
  return nullptr;
}

void* random_bf16(std::int64_t n, std::uint64_t seed) {
  std::vector<bf16> host(static_cast<std::size_t>(n));
  for (auto& v : host) {  // about N(0, 1): a sum of four uniform numbers
    float f = 0;
    for (int i = 0; i < 4; ++i) {
      seed = seed * 6364136223846793005ull + 1442695040888963407ull;
      f += static_cast<float>(seed >> 40) * 0x1p-24f - 0.5f;
    }
    f *= 1.7320508f;
    std::uint32_t u;
    std::memcpy(&u, &f, 4);
    v = static_cast<bf16>(u >> 16);
  }
  void* p = probe::on_device<bf16>(host.size());
  CUDA(cudaMemcpy(p, host.data(), host.size() * sizeof(bf16), cudaMemcpyHostToDevice));
  return p;
}

std::uint64_t hash_of(const void* device, std::size_t bytes) {
  std::vector<std::uint64_t> host(bytes / 8);
  CUDA(cudaMemcpy(host.data(), device, bytes, cudaMemcpyDeviceToHost));
  std::uint64_t h = 14695981039346656037ull;
  for (const auto v : host) h = (h ^ v) * 1099511628211ull;
  return h;
}

}  // namespace

int main(int argc, char** argv) {
  cudnnHandle_t handle{};
  if (const int s = cudnnCreate(&handle)) return fact("cudnnCreate", text("%d", s)), 1;
  std::vector<std::pair<const char*, std::shared_ptr<fe::DeviceProperties>>> sources;
  if (argc > 1) sources.emplace_back("properties by hand", properties_of(argv[1]));
  if (argc > 2) sources.emplace_back("properties of cuDNN", properties_of(argv[2]));
  const auto tell = [](const std::string& what, const Chosen& c) {
    fact(what, c.workspace < 0 ? c.name
                               : text("%s workspace %lld bytes (%.2f MiB), planned in %.0f ms", c.name.c_str(),
                                      static_cast<long long>(c.workspace), double(c.workspace) / 0x1p20, c.ms));
  };
  for (const Shape s : {Shape{1, 16, 16, 2048, 128},
                        {4, 16, 16, 2048, 128},
                        {4, 16, 4, 2048, 128},
                        {8, 16, 16, 2048, 128},
                        {16, 16, 16, 2048, 128}})
    for (const Kind kind : {Kind::forward, Kind::backward, Kind::deterministic}) {
      const std::string what = text("attention B %lld KV %lld %s", static_cast<long long>(s.B),
                                    static_cast<long long>(s.KV), names[static_cast<int>(kind)]);
      for (const auto& [source, properties] : sources)
        if (properties) tell(what + ", " + source, plan(*graph_of(kind, s), nullptr, properties));
      tell(what + ", device", plan(*graph_of(kind, s), handle, nullptr));
    }

  const cudaStream_t stream = probe::new_stream();
  cudnnSetStream(handle, stream);
  for (const std::int64_t B : {1, 4, 8}) {
    const Shape s{B, 16, 16, 2048, 128};
    const std::int64_t n = s.B * s.H * s.T * s.D;
    std::unordered_map<std::int64_t, void*> at{
        {q_id, random_bf16(n, 1)}, {k_id, random_bf16(n, 2)}, {v_id, random_bf16(n, 3)}, {do_id, random_bf16(n, 4)}};
    for (const auto id : {o_id, dq_id, dk_id, dv_id}) at[id] = probe::on_device<bf16>(static_cast<std::size_t>(n));
    at[stats_id] = probe::on_device<float>(static_cast<std::size_t>(s.B * s.H * s.T));
    for (const Kind kind : {Kind::forward, Kind::backward, Kind::deterministic}) {
      const std::string what = text("attention B %lld %s", static_cast<long long>(B), names[static_cast<int>(kind)]);
      auto g = graph_of(kind, s);
      const Chosen c = plan(*g, handle, nullptr);
      if (c.workspace < 0) continue;
      void* workspace = probe::on_device<char>(static_cast<std::size_t>(c.workspace) + 16);
      std::vector<double> host_us;
      const auto run = [&](int) {
        const double begin = probe::now_us();
        execute(*g, handle, tensors_of(kind, at), workspace);
        host_us.push_back(probe::now_us() - begin);
      };
      const double ms =
          probe::median(probe::timed_ms(stream, B == 8 ? 600 : 30, run, 5));  // of 8: long enough for the power limit
      // Causal: half of the products count. Forward has two, backward five.
      const double flops = (kind == Kind::forward ? 2 : 5) * 2.0 * double(s.B * s.H) * double(s.T) * double(s.T) *
                           double(s.D) / 2;
      fact(what + " time", ms, "ms");
      fact(what + " rate", flops / ms / 1e9, "TFLOP/s");
      fact(what + " host time of a call", host_us, "us");
      const std::vector<std::int64_t> outputs = kind == Kind::forward ? std::vector<std::int64_t>{o_id}
                                                                      : std::vector<std::int64_t>{dq_id, dk_id, dv_id};
      std::string same;
      for (const auto id : outputs) {
        int differ = 0;
        std::uint64_t first = 0;
        for (int i = 0; i < 10; ++i) {
          CUDA(cudaMemsetAsync(at[id], 0xFF, static_cast<std::size_t>(n) * 2, stream));
          if (c.workspace)
            CUDA(cudaMemsetAsync(workspace, i % 2 ? 0xFF : 0x7F, static_cast<std::size_t>(c.workspace), stream));
          run(0);
          CUDA(cudaStreamSynchronize(stream));
          const std::uint64_t h = hash_of(at[id], static_cast<std::size_t>(n) * 2);
          if (i == 0) first = h;
          else differ += h != first;
        }
        same += text("%s%d (%016llx)", same.empty() ? "" : " ", differ, static_cast<unsigned long long>(first));
      }
      fact(what + " runs of 9 with other bits than the first, by output", same);
      CUDA(cudaFree(workspace));
    }
    for (auto& [id, p] : at) CUDA(cudaFree(p));
  }
  cudnnDestroy(handle);
}
