// OpDef: what the graph, the planner and the device need to know of an op. One op per file; an OpSet
// holds the ops of an application (no global registry: main builds it).
//
// NU-0 (kernels): the bits that a kernel writes depend on the shapes and values of its inputs, and of its state where
// it has one, only: not on addresses, alignment, thread count or what ran before. An output overlaps no other argument.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

#include "devices/base/status.h"
#include "devices/device.h"
#include "placement/layout.h"

namespace troupe::kernels {

/// Constants of an op: numbers, names, lists. Part of the plan, comparable.
using Attr = std::variant<std::int64_t, double, std::string, std::vector<std::int64_t>>;
class Attrs {
 public:
  Attrs() = default;
  Attrs(std::initializer_list<std::pair<const std::string, Attr>> init) : map_(init) {}
  bool has(const std::string& key) const { return map_.count(key) != 0; }
  /// `otherwise` where the key is absent or not a number; integer() truncates a real.
  std::int64_t integer(const std::string& key, std::int64_t otherwise = 0) const;
  double real(const std::string& key, double otherwise = 0) const;
  const std::string& text(const std::string& key) const;  ///< "" when absent
  void set(const std::string& key, Attr value) { map_[key] = std::move(value); }
  const std::map<std::string, Attr>& all() const { return map_; }
  bool operator==(const Attrs&) const = default;

 private:
  std::map<std::string, Attr> map_;
};

/// An attribute that an op reads.
struct Attribute {
  enum class Kind : std::uint8_t { integer, real, text, list };
  std::string name;
  Kind kind = Kind::integer;
};
inline Attribute integer_attribute(std::string name) { return {std::move(name), Attribute::Kind::integer}; }
inline Attribute real_attribute(std::string name) { return {std::move(name), Attribute::Kind::real}; }
inline Attribute text_attribute(std::string name) { return {std::move(name), Attribute::Kind::text}; }

/// Logical type of a tensor.
struct TensorType {
  DType dtype = DType::f32;
  Shape shape;
  bool operator==(const TensorType&) const = default;
};

/// One argument of a kernel: this place's part of a logical tensor, dense and row-major.
struct View {
  std::byte* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;                ///< of the part
  Shape logical;              ///< of the whole tensor
  Extent extent;              ///< where the part lies in the whole: [lo, hi) of each dim (placement/extent.h)
  std::int32_t exponent = 0;  ///< sum64: the value of an element is its count times 2^-exponent
  /// of terms: raised to the largest |term| of the call; NaN above all. The caller sets -0: then +0 says that all terms
  /// were zero, and -0 that the call reported none
  float* peak = nullptr;

  /// Its elements. ASSERTs that they are of this type: an output of OpDef::accumulates may be f32 or sum64, as the plan
  /// has it.
  template <class T>
  T* as() const {
    if (!holds<T>()) not_of_type(sizeof(T));
    return reinterpret_cast<T*>(data);
  }
  template <class T>
  bool holds() const {
    if constexpr (std::is_same_v<T, float>) return dtype == DType::f32;
    else if constexpr (std::is_same_v<T, double>) return dtype == DType::f64;
    else if constexpr (std::is_same_v<T, std::int32_t>) return dtype == DType::i32;
    else if constexpr (std::is_same_v<T, std::int64_t>) return dtype == DType::i64 || dtype == DType::sum64;
    else if constexpr (std::is_same_v<T, std::uint8_t>) return dtype == DType::u8;
    else if constexpr (std::is_same_v<T, std::uint16_t>) return dtype == DType::bf16 || dtype == DType::f16;
    else static_assert(sizeof(T) == 0, "no DType has elements of this type: use data");
  }
  std::int64_t size() const { return elements(shape); }
  std::int64_t bytes() const { return size() * size_of(dtype); }
  /// Length of the last dim, and the product of the others: most kernels see (rows, cols).
  std::int64_t cols() const { return shape.empty() ? 1 : shape.back(); }
  std::int64_t rows() const { return shape.empty() ? 1 : (cols() ? size() / cols() : 0); }

 private:
  [[noreturn]] void not_of_type(std::size_t size) const;
};

/// One call of a kernel on one device stream.
struct Call {
  std::vector<View> in, out;
  /// For outputs of dtype sum64 named in OpDef::accumulates: sums = this call's terms (false) or += them (true). Never
  /// set where such an output is f32: it then receives the gradient of this call alone.
  bool accumulate = false;
  const Attrs* attrs = nullptr;
  std::span<std::byte> scratch;  ///< at least OpDef::scratch_bytes, 64-byte aligned, garbage inside
  /// at least OpDef::state_bytes, 64-byte aligned: as this op's last call left it, at first zero
  std::span<std::byte> state;
  Parallel* par = nullptr;
  void* queue = nullptr;      ///< of a CUDA body: the stream (cudaStream_t) on which it issues its kernels
  std::uint64_t rng_key = 0;  ///< philox_key(seed, logical name of the forward op)
  std::int64_t step = 0;
  std::int64_t microbatch = -1;   ///< index within the step, of the whole job; -1: of a step
  std::int64_t first_sample = 0;  ///< global index, within the step, of row 0 of dim 0
};

/// How the body of an op stores a weight gradient (OpDef::accumulates), whatever the plan has made of that output:
/// out = or += terms[0, out.size()), each rounded once where `out` is an exact sum; and its peak is raised. A body that
/// calls it once passes Call::accumulate. A body that adds several terms passes Call::accumulate first, then true, and
/// says how many in OpDef::terms.
void put_terms(const View& out, const float* terms, bool accumulate, Parallel& par);

/// The part of `all`, whose dim 0 is the microbatch of the step, that a microbatch has. ASSERTs that it lies here.
std::byte* microbatch_of(const View& all, std::int64_t microbatch);

/// A tensor of the graph under construction.
using Value = std::int32_t;
inline constexpr Value no_value = -1;

/// What a gradient rule sees of the graph: it emits ordinary ops.
class GradContext {
 public:
  virtual ~GradContext() = default;
  virtual Value in(int i) const = 0;
  virtual Value out(int i) const = 0;
  /// Gradient with respect to output i; no_value when nothing depends on it.
  virtual Value grad_out(int i) const = 0;
  virtual bool needs_grad(int i) const = 0;  ///< true where the gradient of input i is needed
  virtual TensorType type(Value v) const = 0;
  virtual const Attrs& attrs() const = 0;
  /// Adds an op; returns its outputs.
  virtual std::vector<Value> emit(const std::string& op, std::vector<Value> in, Attrs attrs) = 0;
  /// The gradient of input i is v (several are summed by the graph). Through an input for which the rule calls it never
  /// no gradient passes: what is upstream of it is not trained by this way to the loss. Error: an input that the op
  /// does not have.
  virtual void grad_in(int i, Value v) = 0;
};

/// How inputs and outputs may lie along one mesh axis: one row of OneFlow's SBP signature table.
struct Signature {
  std::vector<Sbp> in, out;
  bool operator==(const Signature&) const = default;
};

/// Arithmetic and memory traffic of one call.
struct OpCost {
  double flops = 0, bytes = 0;
};

/// The body of an op on a CUDA device. All memory of its calls is the device's, or pinned memory of the host which the
/// device reaches (Call::attrs is the host's): the body issues kernels on Call::queue and returns. Its outputs have the
/// bits that the CPU body gives (docs/decisions/0057-same-bits-on-every-device.md).
struct CudaBody {
  std::function<void(const Call&)> issue;
  /// Empty: OpDef::scratch_bytes holds here as well.
  std::function<std::int64_t(std::span<const TensorType> in, std::span<const TensorType> out, const Attrs&)>
      scratch_bytes = {};
};

struct OpDef {
  std::string name;
  int inputs = 1, outputs = 1;
  /// All attributes that it reads: a graph refuses others, by name. That of `random` need not be among them.
  std::vector<Attribute> attributes = {};
  /// Shape rule: output types, or an error that says which input is wrong and what was expected.
  std::function<Expected<std::vector<TensorType>>(std::span<const TensorType> in, const Attrs&)> infer;
  /// Legal layouts along one axis. All-broadcast is always legal and need not be listed. Empty function: no other.
  std::function<std::vector<Signature>(std::span<const TensorType> in, const Attrs&)> signatures;
  /// Emits backward ops. Empty: the op has no gradient, and minimize() fails, naming it, if the loss depends on it.
  std::function<Status(GradContext&)> gradient;
  /// Empty: bytes of inputs and outputs, no arithmetic.
  std::function<OpCost(std::span<const TensorType> in, std::span<const TensorType> out, const Attrs&)> cost;
  /// Empty: none.
  std::function<std::int64_t(std::span<const TensorType> in, std::span<const TensorType> out, const Attrs&)>
      scratch_bytes;
  /// Empty: none. Else memory that the op keeps from call to call (Call::state). It then runs only in programs whose
  /// microbatches all come to one place, one after the other (ProgramSpec::stateful); it has no gradient.
  std::function<std::int64_t(std::span<const TensorType> in, std::span<const TensorType> out, const Attrs&)>
      state_bytes;
  /// Bit i: output i is a weight gradient, which the kernel adds up itself. The plan decides, by ZeRO stage and terms,
  /// whether that output is f32 or an exact sum (sum64): the body stores with put_terms() and need not know. What one
  /// store adds, rounded once to a multiple of the sum's unit, is a term. 0, which is right for most ops: outputs are
  /// f32, and the graph adds the op `accumulate` behind those that are weight gradients; the bits are as independent of
  /// the topology, for 4 bytes an element of activation memory.
  std::uint32_t accumulates = 0;
  /// Of an op with `accumulates`: the most terms that one call adds to an element, at least 1; empty: 1. A step adds at
  /// most 2^40 terms to an element of a parameter, over all uses and microbatches. REQUIRES: no call adds more terms
  /// than this function returns. The range of a term follows from the number: a sum of more terms may wrap. And with
  /// ZeRO 2 and 3 a gradient of one term is f32, in which a second term would be rounded: other bits than with ZeRO 0.
  std::function<std::int64_t(std::span<const TensorType> in, const Attrs&)> terms;
  /// A scalar loss, the root of a backward pass: output 0 is an f64 [1] sum over rows, not divided by
  /// anything. Its gradient rule reads no grad_out; it multiplies by the attribute "scale" (1 / divisor).
  bool is_loss = false;
  /// The op draws random numbers: the graph gives it its logical name as the attribute "rng" where it has none. Rows of
  /// its first input that is of a microbatch are that microbatch's samples: first_sample numbers them.
  bool random = false;
  /// An end of a Graph::step_delay: of one argument, whose dim 0 is the microbatch of the step, a place has the part of
  /// the microbatches that it runs (microbatch_of). No graph names such an op.
  bool by_microbatch = false;
  /// Of the values of a call's inputs and state, before its body runs: an application may give ids that no table has.
  /// Error: `invalid`, which names the op, the value and its bound; the act fails with it. Empty: any values will do.
  /// On a device with memory of its own it is called only for an op without state whose i32 inputs all come from feeds
  /// or actors of the application, and may read these inputs alone: bodies there must not leave their arguments for any
  /// value.
  std::function<Status(const Call&)> check;
  /// The body. Required, as `infer` is.
  std::function<void(const Call&)> cpu;
  /// The body for CUDA devices. Without one the op cannot be placed on a GPU.
  CudaBody cuda = {};
};

/// Of the attributes that a caller gives to the op. Error: one that it does not have, or of another kind (an integer is
/// a real, too), with those that it has.
Status check_attributes(const OpDef& op, const Attrs& attrs);

/// Of the rows that OpDef::signatures returns for these types. Error: a row that has not a layout for each input and
/// output, or that splits a dim which the tensor does not have, by its number and argument. Whether what a row says of
/// the values is true is the op's promise: check_op (kernels/check_op.h) tries it.
Status check_signatures(const OpDef& op, std::span<const TensorType> in, std::span<const TensorType> out,
                        const Attrs& attrs);

/// The ops of an application, by name. A value: main builds it and passes it down.
class OpSet {
 public:
  /// Error: a name that is taken, or begins with "update."; an op without infer or cpu, one with state and a gradient.
  Status add(OpDef op);
  /// Null where there is none.
  const OpDef* find(const std::string& name) const;
  std::vector<std::string> names() const;

 private:
  std::map<std::string, OpDef> ops_;
};

/// Every op that ships with Troupe.
OpSet standard_ops();

}  // namespace troupe::kernels
