// Writes what tests/model/reference.py checks: the language model's training graph for small configurations,
// executed op by op for one whole step, without plan, actors or memory planning.
//
//   model_dump FOLDER   ->  FOLDER/<case>/{config.json, tokens, targets, loss, param.<name>, grad.<name>}.npy
//
// Weights are drawn larger than a training run would: so that attention is not uniform and every term counts.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "apps/lm/model.h"
#include "devices/base/philox.h"
#include "kernels/initial.h"
#include "tests/model/interpreter.h"

using namespace troupe;
using namespace troupe::runtime;
using test::die, test::Interpreter, test::need;

namespace {

struct Case {
  const char *name, *toml;
};

// Odd sizes on purpose. Between them: grouped, multi-query and plain attention; dim != heads * head_dim; tied
// and untied; one and several microbatches; more than one block of attention and more than one chunk of logits.
const Case cases[] = {
    {"grouped-untied",
     "[model]\nlayers = 2\nheads = 6\nkv_heads = 2\ndim = 20\nhead_dim = 6\nffn = 27\nseq = 13\n"
     "[schedule]\nsteps = 1\nlr = 1e-3\nbatch = 6\nmicrobatch = 2\n"},
    {"multi-query-tied",
     "[model]\nlayers = 3\nheads = 4\nkv_heads = 1\ndim = 24\nffn = 41\nseq = 37\nvocab = 131\ntied = true\n"
     "[schedule]\nsteps = 1\nlr = 1e-3\nbatch = 3\nmicrobatch = 1\n"},
    {"long-tied",
     "[model]\nlayers = 2\nheads = 3\nkv_heads = 3\ndim = 33\nhead_dim = 10\nffn = 48\nseq = 150\nvocab = 1100\ntied = "
     "true\n"
     "rope_theta = 500.0\nnorm_eps = 0.05\n"
     "[schedule]\nsteps = 1\nlr = 1e-3\nbatch = 3\nmicrobatch = 3\n"},
    {"grouped-long-untied",
     "[model]\nlayers = 2\nheads = 4\nkv_heads = 2\ndim = 32\nffn = 65\nseq = 101\nvocab = 300\n"
     "[schedule]\nsteps = 1\nlr = 1e-3\nbatch = 4\nmicrobatch = 2\n"},
};

/// Words of random letters: all that the model is asked is to be differentiated.
std::string write_text(const std::string& path) {
  std::string text;
  for (std::uint64_t i = 0; text.size() < 6000; ++i) {
    const auto random = philox(2024, i, 0);
    for (std::uint32_t n = 1 + random[0] % 7; n > 0; --n) text += static_cast<char>('a' + philox(2024, i, n)[1] % 26);
    text += i % 11 == 10 ? ".\n" : " ";
  }
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

/// NumPy's file format, version 1.0: a header in Python's syntax, padded to 64 bytes, then the bytes.
void write_npy(const std::string& path, const char* type, const Shape& shape, const void* data, std::size_t bytes) {
  std::string header = std::string("{'descr': '") + type + "', 'fortran_order': False, 'shape': (";
  for (auto n : shape) header += std::to_string(n) + ",";
  header += "), }";
  header.append((64 - (10 + header.size() + 1) % 64) % 64, ' ');
  header += '\n';
  std::ofstream out(path, std::ios::binary);
  out.write("\x93NUMPY\x01\x00", 8);
  const char length[2] = {static_cast<char>(header.size() & 0xff), static_cast<char>(header.size() >> 8)};
  out.write(length, 2);
  out << header;
  out.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  if (!out.flush()) die("cannot write " + path);
}

/// Matrices keep the scale of what goes through them; norms are 1 with noise.
void fill_parameter(float* p, const Shape& shape, const std::string& name) {
  const auto n = elements(shape);
  SerialParallel serial;
  const kernels::View all{reinterpret_cast<std::byte*>(p), DType::f32, {n}, {n}, Extent::whole({n})};
  const bool matrix = shape.size() == 2;
  kernels::init_normal(all, philox_key(7, name), matrix ? 1.5f / std::sqrt(static_cast<float>(shape[1])) : 0.3f,
                       serial);
  for (std::int64_t i = 0; i < n && !matrix; ++i) p[i] += 1;
}

void dump(const Case& c, const App& app, const std::string& text, const std::string& folder) {
  const auto config = need(lm::parse_config(c.toml, c.name));
  const Graph g = lm::build_model(config, app.ops(), text);
  if (!g.status().ok()) die(g.status().message());
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/config.json") << lm::to_json(config);

  Interpreter run(g, app);
  for (const auto& grad : g.grads()) {
    const auto& t = g.tensors()[static_cast<std::size_t>(grad.param)];
    fill_parameter(run.data<float>(grad.param), t.type.shape, t.name);
    write_npy(folder + "/param." + t.name + ".npy", "<f4", t.type.shape, run.data<float>(grad.param),
              run.size(grad.param) * 4);
  }
  // The loss, and both loaders' ports: what the training program reports and publishes.
  Value loss = kernels::no_value;
  std::map<std::string, Value> ports;
  for (const Node& n : g.nodes()) {
    if (n.program != 0) continue;
    if (n.kind == Node::Kind::report) loss = n.in[0];
    if (n.kind == Node::Kind::actor) ports[n.attrs.text("what")] = n.out[0];
  }
  std::map<std::string, std::vector<std::int32_t>> tokens;
  double total = 0;
  for (std::int64_t m = 0; m < config.schedule.microbatches(); ++m) {
    run.run(0, m);
    total += run.data<double>(loss)[0];
    for (const auto& [what, v] : ports)
      tokens[what].insert(tokens[what].end(), run.data<std::int32_t>(v), run.data<std::int32_t>(v) + run.size(v));
  }
  total /= static_cast<double>(lm::tokens_per_step(config));
  write_npy(folder + "/loss.npy", "<f8", {1}, &total, sizeof total);
  for (const auto& [what, values] : tokens)
    write_npy(folder + "/" + what + ".npy", "<i4", {config.schedule.batch, config.model.seq}, values.data(),
              values.size() * 4);
  for (const auto& grad : g.grads()) {
    const auto& t = g.tensors()[static_cast<std::size_t>(grad.param)];
    std::vector<float> sum(static_cast<std::size_t>(run.size(grad.param)));
    for (Value use : grad.uses)
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += run.data<float>(use)[i];
    write_npy(folder + "/grad." + t.name + ".npy", "<f4", t.type.shape, sum.data(), sum.size() * 4);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) die("usage: model_dump FOLDER");
  const std::string folder = argv[1];
  std::filesystem::create_directories(folder);
  App app;
  lm::register_actors(app);
  const auto text = write_text(folder + "/text.txt");
  for (const auto& c : cases) dump(c, app, text, folder + "/" + c.name);
}
