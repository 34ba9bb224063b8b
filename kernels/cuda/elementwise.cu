// add, weighted_sum, running_average, multiply, scale, relu, swiglu, the gradients of the last two, delay and its kin.
#include "kernels/cuda/elementwise.cuh"

#include "kernels/cuda/bodies.h"
#include "kernels/cuda/exact.cuh"

namespace troupe::kernels::cuda {

namespace {

struct Add {
  TROUPE_DEVICE float operator()(float x, float y) const { return x + y; }
};
struct Multiply {
  TROUPE_DEVICE float operator()(float x, float y) const { return x * y; }
};
struct WeightedSum {
  float of_x, of_y;
  TROUPE_DEVICE float operator()(float x, float y) const { return x * of_x + y * of_y; }
};
/// Weights follow from the number of the update.
struct RunningAverage {
  const float* number;
  double decay;
  TROUPE_DEVICE float operator()(float x, float y) const {
    const double old = *number <= 1 ? 0 : decay;
    return x * static_cast<float>(old) + y * static_cast<float>(1 - old);
  }
};
struct Scale {
  const float* by;
  TROUPE_DEVICE float operator()(float x) const { return x * *by; }
};
struct Relu {
  TROUPE_DEVICE float operator()(float x) const { return x < 0.0f ? 0.0f : x; }  // keeps NaN visible
};
struct ReluGrad {
  TROUPE_DEVICE float operator()(float d, float y) const { return y > 0.0f ? d : 0.0f; }
};
struct Swiglu {
  TROUPE_DEVICE float operator()(float gate, float up) const { return gate * sigmoid(gate) * up; }
};
struct SwigluGradGate {
  TROUPE_DEVICE float operator()(float d, float gate, float up) const {
    const float s = sigmoid(gate), silu = gate * s;
    return d * up * fmaf(silu, 1.0f - s, s);
  }
};
struct SwigluGradUp {
  TROUPE_DEVICE float operator()(float d, float gate) const { return d * (gate * sigmoid(gate)); }
};

const float* input(const Call& call, std::size_t i) { return call.in[i].as<float>(); }

/// Output `of` = f(inputs...), element by element.
template <class F, class... In>
void map_output(const Call& call, std::size_t of, F f, In... in) {
  map(call.queue, call.out[of].size(), call.out[of].as<float>(), f, in...);
}

}  // namespace

void add(const Call& call) { map_output(call, 0, Add{}, input(call, 0), input(call, 1)); }

void multiply(const Call& call) { map_output(call, 0, Multiply{}, input(call, 0), input(call, 1)); }

void weighted_sum(const Call& call) {
  const WeightedSum f{static_cast<float>(call.attrs->real("a", 1)), static_cast<float>(call.attrs->real("b", 1))};
  map_output(call, 0, f, input(call, 0), input(call, 1));
}

void running_average(const Call& call) {
  map_output(call, 0, RunningAverage{input(call, 2), call.attrs->real("decay")}, input(call, 0), input(call, 1));
}

void scale(const Call& call) { map_output(call, 0, Scale{input(call, 1)}, input(call, 0)); }

void delay(const Call& call) {
  const View &x = call.in[0], &y = call.out[0];
  x.data ? copy(call.queue, y.data, x.data, y.bytes()) : clear(call.queue, y.data, y.bytes());
}

void keep_microbatch(const Call& call) {
  copy(call.queue, microbatch_of(call.out[0], call.microbatch), call.in[0].data, call.in[0].bytes());
}

void kept_microbatch(const Call& call) {
  copy(call.queue, call.out[0].data, microbatch_of(call.in[0], call.microbatch), call.out[0].bytes());
}

void relu(const Call& call) { map_output(call, 0, Relu{}, input(call, 0)); }

void relu_grad(const Call& call) { map_output(call, 0, ReluGrad{}, input(call, 0), input(call, 1)); }

void swiglu(const Call& call) { map_output(call, 0, Swiglu{}, input(call, 0), input(call, 1)); }

void swiglu_grad(const Call& call) {
  const float *d = input(call, 0), *gate = input(call, 1), *up = input(call, 2);
  map_output(call, 0, SwigluGradGate{}, d, gate, up);
  map_output(call, 1, SwigluGradUp{}, d, gate);
}

}  // namespace troupe::kernels::cuda
