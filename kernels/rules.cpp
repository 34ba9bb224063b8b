#include "kernels/rules.h"

#include <fmt/format.h>

#include <algorithm>

namespace troupe::kernels {

Status expect(bool holds, const std::string& op, const std::string& expected, Types got) {
  if (holds) return {};
  std::string text = op + " expects " + expected + "; got";
  for (const auto& t : got) text += std::string(" ") + to_string(t.dtype) + " " + to_string(t.shape);
  return invalid(text);
}

Status expect_inputs(const std::string& op, Types in, std::size_t count, std::initializer_list<std::size_t> i32) {
  TROUPE_TRY(expect(in.size() == count, op, fmt::format("{} inputs", count), in));
  for (std::size_t i = 0; i < count; ++i) {
    const DType want = std::find(i32.begin(), i32.end(), i) != i32.end() ? DType::i32 : DType::f32;
    TROUPE_TRY(expect(in[i].dtype == want, op, fmt::format("{} as input {}", to_string(want), i), in));
  }
  return {};
}

std::function<Inferred(Types, const Attrs&)> one_shape(const std::string& op, std::size_t inputs,
                                                       const std::string& expected) {
  return [=](Types in, const Attrs&) -> Inferred {
    TROUPE_TRY(expect_inputs(op, in, inputs));
    for (const auto& t : in) TROUPE_TRY(expect(t == in[0], op, expected, in));
    return std::vector<TensorType>{in[0]};
  };
}

std::int64_t last(const TensorType& t) { return t.shape.empty() ? 1 : t.shape.back(); }

std::int64_t rows_of(const TensorType& t) {
  std::int64_t n = 1;
  for (std::size_t d = 0; d + 1 < t.shape.size(); ++d) n *= t.shape[d];
  return n;
}

double bytes_of(Types in, Types out) {
  double sum = 0;
  for (Types list : {in, out})
    for (const auto& t : list) sum += static_cast<double>(elements(t.shape) * size_of(t.dtype));
  return sum;
}

void add_rows(std::vector<Signature>& table, int first, int end, const std::string& in, const std::string& out,
              int unit_dim, std::int64_t unit) {
  for (int d = first; d < end; ++d) {
    const auto entries = [&](const std::string& letters) {
      std::vector<Sbp> list;
      for (const char c : letters)
        list.push_back(c == 's' ? Sbp::S(d, d == unit_dim ? unit : 1) : c == 'p' ? Sbp::P() : Sbp::B());
      return list;
    };
    table.push_back({entries(in), entries(out)});
  }
}

std::function<std::vector<Signature>(Types, const Attrs&)> rows_split(std::string in, std::string out) {
  return [=](Types types, const Attrs&) {
    std::vector<Signature> table;
    add_rows(table, 0, rank(types[0]) - 1, in, out);
    return table;
  };
}

std::function<std::vector<Signature>(Types, const Attrs&)> elementwise(int inputs, int outputs) {
  return [=](Types in, const Attrs& attrs) {
    std::vector<Signature> table;
    add_rows(table, 0, rank(in[0]), std::string(inputs, 's'), std::string(outputs, 's'), rank(in[0]) - 1,
             attrs.integer("unit", 1));
    return table;
  };
}

std::function<OpCost(Types, Types, const Attrs&)> per_element(double flops) {
  return [=](Types in, Types out, const Attrs&) {
    return OpCost{flops * static_cast<double>(elements(in[0].shape)), bytes_of(in, out)};
  };
}

std::function<Status(const Call&)> ids_below(const std::string& op, const std::string& what, std::size_t ids,
                                             std::size_t table, int dim) {
  return [=](const Call& call) -> Status {
    const Shape& shape = call.in[table].logical;
    const std::int64_t bound = dim < 0 ? shape.back() : shape[static_cast<std::size_t>(dim)];
    const auto* id = call.in[ids].as<std::int32_t>();
    for (std::int64_t i = 0; i < call.in[ids].size(); ++i)
      if (id[i] >= bound)
        return invalid(
            fmt::format("{}: {} {} (number {} of the call) is beyond the table: expected less than {}, dim {} of {}",
                        op, what, id[i], i, bound, dim < 0 ? std::ssize(shape) - 1 : dim, to_string(shape)));
    return {};
  };
}

Attrs only(const Attrs& attrs, std::initializer_list<const char*> keep) {
  Attrs out;
  for (const char* key : keep)
    if (const auto it = attrs.all().find(key); it != attrs.all().end()) out.set(key, it->second);
  return out;
}

}  // namespace troupe::kernels
