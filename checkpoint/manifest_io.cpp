// The forms on disk and on the wire: manifest.capnp, and the 40 bytes in front of a manifest.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <span>

#include "checkpoint/manifest.capnp.h"
#include "checkpoint/shard.h"
#include "devices/base/wire.h"

namespace troupe::checkpoint {

namespace {

static_assert(std::endian::native == std::endian::little, "headers and tensors are written as they lie in memory");
static_assert(static_cast<int>(wire::Kind::SECOND_MOMENT) == static_cast<int>(TensorKind::second_moment));
static_assert(static_cast<int>(wire::Type::BF16) == static_cast<int>(DType::bf16));
static_assert(static_cast<int>(wire::Type::I64) == static_cast<int>(DType::i64));
static_assert(static_cast<int>(wire::Type::U8) == static_cast<int>(DType::u8));

struct Front {
  char magic[8];
  std::uint32_t version, zero;
  std::uint64_t length;  ///< of the rest
  std::uint64_t sum_low, sum_high;
};
static_assert(sizeof(Front) == 40);
constexpr char magic[8] = {'T', 'R', 'O', 'U', 'P', 'E', 'C', 'P'};

unsigned count(std::size_t n) { return static_cast<unsigned>(n); }
// With their lengths: what Cap'n Proto makes of a std::string itself ends at its first NUL.
capnp::Text::Reader text(const std::string& s) { return {s.c_str(), s.size()}; }
std::string text(capnp::Text::Reader r) { return {r.begin(), r.size()}; }
/// An enumerator of a later version stays one that this program does not know.
template <class E, class W>
E narrowed(W value) {
  return static_cast<E>(std::min<unsigned>(static_cast<unsigned>(value), 255));
}

void put(wire::Sum::Builder b, const Checksum& sum) {
  b.setLow(sum.low);
  b.setHigh(sum.high);
}
Checksum get(wire::Sum::Reader r) { return {r.getLow(), r.getHigh()}; }

void put(wire::StoredExtent::Builder b, const StoredExtent& e) {
  auto dims = b.initDims(count(e.extent.dims.size()));
  for (unsigned i = 0; i < dims.size(); ++i) dims[i].setLo(e.extent.dims[i].lo), dims[i].setHi(e.extent.dims[i].hi);
  b.setFile(e.file);
  b.setOffset(e.offset);
  auto blocks = b.initBlocks(count(e.blocks.size()));
  for (unsigned i = 0; i < blocks.size(); ++i) put(blocks[i], e.blocks[i]);
}
StoredExtent get(wire::StoredExtent::Reader r) {
  StoredExtent e{{}, r.getFile(), r.getOffset(), {}};
  for (auto d : r.getDims()) e.extent.dims.push_back({d.getLo(), d.getHi()});
  const auto blocks = r.getBlocks();
  e.blocks.reserve(blocks.size());
  for (auto b : blocks) e.blocks.push_back(get(b));
  return e;
}

void put(wire::StoredTensor::Builder b, const StoredTensor& t) {
  b.setParameter(text(t.parameter));
  b.setKind(static_cast<wire::Kind>(t.kind));
  b.setDtype(static_cast<wire::Type>(t.dtype));
  auto shape = b.initShape(count(t.shape.size()));
  for (unsigned i = 0; i < shape.size(); ++i) shape.set(i, t.shape[i]);
  auto extents = b.initExtents(count(t.extents.size()));
  for (unsigned i = 0; i < extents.size(); ++i) put(extents[i], t.extents[i]);
}
StoredTensor get(wire::StoredTensor::Reader r) {
  StoredTensor t{text(r.getParameter()), narrowed<TensorKind>(r.getKind()), narrowed<DType>(r.getDtype()), {}, {}};
  for (auto d : r.getShape()) t.shape.push_back(d);
  for (auto e : r.getExtents()) t.extents.push_back(get(e));
  return t;
}

void put(wire::StoredFile::Builder b, const StoredFile& f) {
  b.setName(text(f.name));
  b.setBytes(f.bytes);
  b.setDataOffset(f.data_offset);
  put(b.initHeader(), f.header);
}
StoredFile get(wire::StoredFile::Reader r) {
  return {text(r.getName()), r.getBytes(), r.getDataOffset(), get(r.getHeader())};
}

/// Checks the first 40 bytes, and the checksum of the rest. Returns the rest. Error: `invalid`.
Expected<std::span<const std::byte>> unframed(const std::vector<std::byte>& bytes) {
  Front front;
  if (bytes.size() < sizeof front) return invalid(fmt::format("no manifest: it has {} bytes", bytes.size()));
  std::memcpy(&front, bytes.data(), sizeof front);
  const auto rest = std::span(bytes).subspan(sizeof front);
  if (std::memcmp(front.magic, magic, sizeof magic) != 0)
    return invalid("no manifest: it does not begin with TROUPECP");
  if (front.version > manifest_version)
    return invalid(
        fmt::format("the manifest has version {}, this program reads up to {}", front.version, manifest_version));
  if (front.version == 0 || front.zero != 0) return invalid("the manifest is damaged: its first 16 bytes");
  if (front.length != rest.size())
    return invalid(
        fmt::format("the manifest is damaged: {} bytes follow its head, {} should", rest.size(), front.length));
  if (checksum(rest.data(), std::ssize(rest)) != Checksum{front.sum_low, front.sum_high})
    return invalid("the manifest is damaged: its checksum is another one");
  return rest;
}

}  // namespace

std::vector<std::byte> encode(const Manifest& m) {
  capnp::MallocMessageBuilder message;
  auto b = message.initRoot<wire::Manifest>();
  b.setJob(m.stamp.job);
  b.setGeneration(m.stamp.generation);
  b.setStep(m.stamp.step);
  b.setSeed(m.seed);
  b.setLanesGone(1);  // older programs refuse a manifest with less
  b.setConfig(text(m.config));
  auto files = b.initFiles(count(m.files.size()));
  for (unsigned i = 0; i < files.size(); ++i) put(files[i], m.files[i]);
  auto tensors = b.initTensors(count(m.tensors.size()));
  for (unsigned i = 0; i < tensors.size(); ++i) put(tensors[i], m.tensors[i]);
  b.setUpdates(m.updates);
  b.setVoidSteps(m.void_steps);
  auto exponents = b.initExponents(count(m.exponents.size()));
  for (unsigned i = 0; i < exponents.size(); ++i) {
    exponents[i].setParameter(text(m.exponents[i].parameter));
    exponents[i].setExponent(m.exponents[i].exponent);
    exponents[i].setPeak(m.exponents[i].peak);
  }
  auto programs = b.initPrograms(count(m.programs.size()));
  for (unsigned i = 0; i < programs.size(); ++i) {
    programs[i].setProgram(text(m.programs[i].program));
    programs[i].setUpdates(m.programs[i].updates);
    programs[i].setVoidSteps(m.programs[i].void_steps);
  }

  const auto rest = message_bytes(message);
  const Checksum sum = checksum(rest.data(), std::ssize(rest));
  Front front{{}, manifest_version, 0, rest.size(), sum.low, sum.high};
  std::copy(std::begin(magic), std::end(magic), front.magic);
  std::vector<std::byte> bytes(sizeof front + rest.size());
  std::memcpy(bytes.data(), &front, sizeof front);
  std::copy(rest.begin(), rest.end(), bytes.begin() + sizeof front);
  return bytes;
}

Expected<Manifest> decode_manifest(const std::vector<std::byte>& bytes) {
  TROUPE_ASSIGN(const auto rest, unframed(bytes));
  return read_message<wire::Manifest, Manifest>(
      rest, "the manifest is damaged", [](wire::Manifest::Reader r) -> Expected<Manifest> {
        Manifest m{{r.getJob(), r.getGeneration(), r.getStep()},
                   r.getSeed(),
                   text(r.getConfig()),
                   {},
                   {},
                   r.getUpdates(),
                   {},
                   r.getVoidSteps(),
                   {}};
        for (auto f : r.getFiles()) m.files.push_back(get(f));
        for (auto t : r.getTensors()) m.tensors.push_back(get(t));
        for (auto e : r.getExponents()) m.exponents.push_back({text(e.getParameter()), e.getExponent(), e.getPeak()});
        for (auto p : r.getPrograms()) m.programs.push_back({text(p.getProgram()), p.getUpdates(), p.getVoidSteps()});
        TROUPE_TRY(validate(m));
        return m;
      });
}

std::vector<std::byte> encode(const ShardRecord& record) {
  capnp::MallocMessageBuilder message;
  auto b = message.initRoot<wire::ShardRecord>();
  put(b.initFile(), record.file);
  auto tensors = b.initTensors(count(record.tensors.size()));
  for (unsigned i = 0; i < tensors.size(); ++i) put(tensors[i], record.tensors[i]);
  return message_bytes(message);
}

Expected<ShardRecord> decode_shard_record(const std::vector<std::byte>& bytes) {
  return read_message<wire::ShardRecord, ShardRecord>(bytes, "not a shard's record",
                                                      [](wire::ShardRecord::Reader r) -> Expected<ShardRecord> {
                                                        ShardRecord record{get(r.getFile()), {}};
                                                        for (auto t : r.getTensors()) record.tensors.push_back(get(t));
                                                        return record;
                                                      });
}

}  // namespace troupe::checkpoint
