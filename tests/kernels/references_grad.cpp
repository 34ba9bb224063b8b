// Gradients of the definitions in references.cpp, by central differences.
#include "references.h"

namespace troupe::kernels::reference {

namespace {

/// d objective(x) / d x, element by element.
template <class F>
Vec differences(Vec x, F objective) {
  constexpr double h = 1e-5;
  Vec d;
  for (auto& element : x) {
    const double kept = element;
    element = kept + h;
    const double up = objective(x);
    element = kept - h;
    const double down = objective(x);
    element = kept;
    d.push_back((up - down) / (2 * h));
  }
  return d;
}

double dot(const Vec& a, const Vec& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// A call of the forward op: shapes of its inputs, attributes.
OpCase forward(const OpCase& c, std::vector<Shape> shapes, Attrs attrs = {}) {
  OpCase f{c.name, "", {}, std::move(attrs)};
  for (auto& shape : shapes) f.in.push_back({DType::f32, std::move(shape)});
  return f;
}

const Attrs rmsnorm_attrs = {{"eps", 1e-5}};

}  // namespace

Values embedding_grad(const OpCase& c, const Values& in) {
  const auto V = c.attrs.integer("rows"), C = c.in[0].shape.back();
  const auto call = forward(c, {c.in[1].shape, {V, C}});
  return {differences(Vec(at(V * C)), [&](const Vec& w) { return dot(in[0], embedding(call, {in[1], w})[0]); })};
}

Values rmsnorm_dx(const OpCase& c, const Values& in) {
  const auto C = c.in[2].shape[0];
  const auto call = forward(c, {{1, C}, {C}}, rmsnorm_attrs);
  Vec dx;
  for (int64_t row = 0; row < size(in[1]); row += C) {  // rows are independent
    const Vec dy(in[0].begin() + row, in[0].begin() + row + C), x(in[1].begin() + row, in[1].begin() + row + C);
    const Vec d = differences(x, [&](const Vec& changed) { return dot(dy, rmsnorm(call, {changed, in[2]})[0]); });
    dx.insert(dx.end(), d.begin(), d.end());
  }
  return {dx};
}

Values rmsnorm_dw(const OpCase& c, const Values& in) {
  const auto C = c.in[0].shape.back();
  const auto call = forward(c, {c.in[1].shape, {C}}, rmsnorm_attrs);
  return {differences(Vec(at(C)), [&](const Vec& w) { return dot(in[0], rmsnorm(call, {in[1], w})[0]); })};
}

Values swiglu_grad(const OpCase& c, const Values& in) {
  const auto of = [&](std::size_t which) {
    Vec d;
    for (std::size_t i = 0; i < in[0].size(); ++i)  // elements are independent
      d.push_back(differences({in[which][i]}, [&](const Vec& x) {
        return in[0][i] * swiglu(c, which == 1 ? Values{x, {in[2][i]}} : Values{{in[1][i]}, x})[0][0];
      })[0]);
    return d;
  };
  return {of(1), of(2)};
}

Values relu_grad(const OpCase&, const Values& in) {
  Vec dx;
  for (std::size_t i = 0; i < in[0].size(); ++i) dx.push_back(in[1][i] > 0 ? in[0][i] : 0);
  return {dx};
}

Values bias_grad(const OpCase& c, const Values& in) {
  const auto N = c.in[0].shape.back();
  const auto call = forward(c, {c.in[0].shape, {N}});
  const Vec x(in[0].size());
  return {differences(Vec(at(N)), [&](const Vec& b) { return dot(in[0], bias_add(call, {x, b})[0]); })};
}

Values softmax_cross_entropy_grad(const OpCase& c, const Values& in) {
  const auto V = c.in[0].shape.back();
  const auto call = forward(c, {{1, V}});
  Vec dx;
  for (int64_t r = 0; r < size(in[1]); ++r) {  // rows are independent
    const Vec x(in[0].begin() + r * V, in[0].begin() + (r + 1) * V);
    const Vec d = differences(x, [&](const Vec& changed) {
      return c.attrs.real("scale") * softmax_cross_entropy(call, {changed, {in[1][at(r)]}})[0][0];
    });
    dx.insert(dx.end(), d.begin(), d.end());
  }
  return {dx};
}

Values mse_loss_grad(const OpCase& c, const Values& in) {
  Vec dx;
  for (std::size_t i = 0; i < in[0].size(); ++i)  // elements are independent
    dx.push_back(differences({in[0][i]}, [&](const Vec& x) {
      return c.attrs.real("scale") * mse_loss(c, {x, {in[1][i]}})[0][0];
    })[0]);
  return {dx};
}

}  // namespace troupe::kernels::reference
