// What the model of a checkpoint answers to prompts: for tests/hf/compare.py.
//
//   hf_logits CHECKPOINT ROWS TOKENS LOGITS
//
// CHECKPOINT: one checkpoint's folder. TOKENS: a file of int32, ROWS prompts of equal length. LOGITS: written, f32
// (ROWS, length, vocabulary).
#include <cstring>
#include <fstream>
#include <iterator>

#include "apps/lm/model.h"
#include "checkpoint/checkpoint_reader.h"
#include "devices/files/file_storage.h"
#include "kernels/cpu/gemm.h"
#include "tests/model/interpreter.h"

using namespace troupe;
using namespace troupe::runtime;
using test::die, test::Interpreter, test::need;

namespace {

std::vector<std::int32_t> read_tokens(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  std::vector<std::int32_t> tokens(bytes.size() / 4);
  std::memcpy(tokens.data(), bytes.data(), tokens.size() * 4);
  return tokens;
}

checkpoint::CheckpointReader open_checkpoint(Storage& storage, const std::string& folder) {
  auto manifest = need(checkpoint::decode_manifest(need(read_file(storage, folder + "/manifest"))));
  return need(checkpoint::CheckpointReader::open(storage, folder, std::move(manifest)));
}

/// The model that trains, evaluating one microbatch of these prompts.
lm::LmConfig config_for(const checkpoint::Manifest& manifest, std::int64_t rows, std::int64_t length) {
  const std::string batch = std::to_string(rows);
  return need(lm::parse_config(manifest.config, "manifest",
                               {"model.seq=" + std::to_string(length), "schedule.batch=" + batch,
                                "schedule.microbatch=" + batch, "eval.every=1", "eval.batches=1"}));
}

const Node& node(const Graph& g, const char* op) {
  for (const Node& n : g.nodes())
    if (n.op == op && g.programs()[static_cast<std::size_t>(n.program)] == "evaluate") return n;
  die(std::string("no ") + op + " in the model");
}

std::vector<float> logits(const checkpoint::CheckpointReader& reader, const std::vector<std::int32_t>& tokens,
                          std::int64_t rows) {
  const auto config = config_for(reader.manifest(), rows, std::ssize(tokens) / rows);
  App app;
  lm::register_actors(app);
  const Graph g = lm::build_model(config, app.ops(), "");
  Interpreter run(g, app);
  for (const Node& n : g.nodes()) {
    if (n.kind != Node::Kind::param) continue;
    const auto* tensor = reader.manifest().find(n.name, checkpoint::TensorKind::parameter);
    if (!tensor) die("the checkpoint has no " + n.name);
    if (const Status s = reader.read_part(*tensor, Extent::whole(tensor->shape), run.data<std::byte>(n.out[0]));
        !s.ok())
      die(s.message());
  }
  const Node &embedding = node(g, "embedding"), &head = node(g, "lm_head_stats");
  std::copy(tokens.begin(), tokens.end(), run.data<std::int32_t>(embedding.in[0]));
  std::fill_n(run.data<std::int32_t>(head.in[2]), tokens.size(), 0);  // targets, which change no logit
  run.run_ops(embedding.program);
  const std::int64_t n = std::ssize(tokens), dim = config.model.dim, vocab = config.model.vocab;
  std::vector<float> out(static_cast<std::size_t>(n * vocab));
  SerialParallel serial;
  kernels::gemm(false, true, n, vocab, dim, run.data<float>(head.in[0]), dim, run.data<float>(head.in[1]), dim,
                out.data(), vocab, serial);
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) die("usage: hf_logits CHECKPOINT ROWS TOKENS LOGITS");
  const std::int64_t rows = std::atoll(argv[2]);
  const auto tokens = read_tokens(argv[3]);
  if (rows < 1 || tokens.empty() || std::ssize(tokens) % rows != 0) die("no such prompts");
  FileStorage storage;
  const auto out = logits(open_checkpoint(storage, argv[1]), tokens, rows);
  std::ofstream file(argv[4], std::ios::binary);
  file.write(reinterpret_cast<const char*>(out.data()), static_cast<std::streamsize>(out.size() * sizeof(float)));
  if (!file.flush()) die(std::string("cannot write ") + argv[4]);
}
