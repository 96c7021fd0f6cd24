// Which of the kernels that are compiled for several kinds of processors this one runs; products of floats only.
#pragma once

#ifdef PHALANX_HAVE_AVX2
namespace phalanx {
inline bool has_avx2_and_fma() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return has;
}
}  // namespace phalanx
#define PHALANX_BEST_KERNELS (::phalanx::has_avx2_and_fma() ? kAvx2Kernels : kBaselineKernels)
#else
#define PHALANX_BEST_KERNELS kBaselineKernels
#endif
