// Small pieces that shape rules and signature tables are made of.
#pragma once

#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "kernels/op.h"

namespace troupe::kernels {

using Types = std::span<const TensorType>;
using Inferred = Expected<std::vector<TensorType>>;

/// Ok when `holds`, else `invalid`: "op expects ...; got [types of all inputs]".
Status expect(bool holds, const std::string& op, const std::string& expected, Types got);
/// Checks that there are `count` inputs, all f32 except those listed, which are i32. Error: `invalid`.
Status expect_inputs(const std::string& op, Types in, std::size_t count, std::initializer_list<std::size_t> i32 = {});

/// The shape rule of an op whose f32 inputs and one output are all of one shape.
std::function<Inferred(Types, const Attrs&)> one_shape(const std::string& op, std::size_t inputs,
                                                       const std::string& expected = "inputs of one shape");

inline int rank(const TensorType& t) { return static_cast<int>(t.shape.size()); }
/// Product of all dims but the last.
std::int64_t rows_of(const TensorType& t);
std::int64_t last(const TensorType& t);
/// Bytes of all inputs and outputs.
double bytes_of(Types in, Types out);

/// Split dims that an op treats as rows: for each d in [first, end), a signature in which each argument named
/// by `in` / `out` is: 's' S(d), 'b' B, 'p' P. `unit` applies to dim `unit_dim` only.
void add_rows(std::vector<Signature>& table, int first, int end, const std::string& in, const std::string& out,
              int unit_dim = -1, std::int64_t unit = 1);
/// One signature of explicit entries.
inline Signature row(std::vector<Sbp> in, std::vector<Sbp> out) { return {std::move(in), std::move(out)}; }

/// Signatures of an op on rows: they may be split along any dim of input 0 but the last. Letters as in add_rows.
std::function<std::vector<Signature>(Types, const Attrs&)> rows_split(std::string in, std::string out);
/// Signatures of an elementwise op of `inputs` and `outputs` of one shape: S(d) for every dim d; the
/// attribute "unit" is the unit of the last.
std::function<std::vector<Signature>(Types, const Attrs&)> elementwise(int inputs, int outputs);
/// `flops` operations for each element of input 0, and the bytes of all arguments.
std::function<OpCost(Types, Types, const Attrs&)> per_element(double flops);

/// The OpDef::check of an op whose input `ids` (i32) names elements of dim `dim` of input `table`, -1: of its last. Ids
/// are bounded by the logical tensor, so that a part of the table may be called with ids of other parts; an id below 0
/// names none. Error: `invalid`, for the first id (a `what`: "token") that is not below the length of that dim.
std::function<Status(const Call&)> ids_below(const std::string& op, const std::string& what, std::size_t ids,
                                             std::size_t table, int dim);

/// Those of `attrs` that `keep` names.
Attrs only(const Attrs& attrs, std::initializer_list<const char*> keep);

}  // namespace troupe::kernels
