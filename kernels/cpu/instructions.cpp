#include "kernels/cpu/instructions.h"

namespace troupe::kernels::cpu {

const char* missing_instructions() {
#ifdef __x86_64__
#ifdef __SSE3__
  if (!__builtin_cpu_supports("sse3")) return "sse3";
#endif
#ifdef __SSSE3__
  if (!__builtin_cpu_supports("ssse3")) return "ssse3";
#endif
#ifdef __SSE4_1__
  if (!__builtin_cpu_supports("sse4.1")) return "sse4.1";
#endif
#ifdef __SSE4_2__
  if (!__builtin_cpu_supports("sse4.2")) return "sse4.2";
#endif
#ifdef __POPCNT__
  if (!__builtin_cpu_supports("popcnt")) return "popcnt";
#endif
#ifdef __AVX__
  if (!__builtin_cpu_supports("avx")) return "avx";
#endif
#ifdef __FMA__
  if (!__builtin_cpu_supports("fma")) return "fma";
#endif
#ifdef __BMI__
  if (!__builtin_cpu_supports("bmi")) return "bmi";
#endif
#ifdef __BMI2__
  if (!__builtin_cpu_supports("bmi2")) return "bmi2";
#endif
#ifdef __AVX2__
  if (!__builtin_cpu_supports("avx2")) return "avx2";
#endif
#ifdef __AVX512F__
  if (!__builtin_cpu_supports("avx512f")) return "avx512f";
#endif
#ifdef __AVX512CD__
  if (!__builtin_cpu_supports("avx512cd")) return "avx512cd";
#endif
#ifdef __AVX512DQ__
  if (!__builtin_cpu_supports("avx512dq")) return "avx512dq";
#endif
#ifdef __AVX512BW__
  if (!__builtin_cpu_supports("avx512bw")) return "avx512bw";
#endif
#ifdef __AVX512VL__
  if (!__builtin_cpu_supports("avx512vl")) return "avx512vl";
#endif
#ifdef __AVX512VBMI__
  if (!__builtin_cpu_supports("avx512vbmi")) return "avx512vbmi";
#endif
#ifdef __AVX512VBMI2__
  if (!__builtin_cpu_supports("avx512vbmi2")) return "avx512vbmi2";
#endif
#ifdef __AVX512VNNI__
  if (!__builtin_cpu_supports("avx512vnni")) return "avx512vnni";
#endif
#ifdef __AVX512BITALG__
  if (!__builtin_cpu_supports("avx512bitalg")) return "avx512bitalg";
#endif
#ifdef __AVX512VPOPCNTDQ__
  if (!__builtin_cpu_supports("avx512vpopcntdq")) return "avx512vpopcntdq";
#endif
#endif
  return nullptr;
}

}  // namespace troupe::kernels::cpu
