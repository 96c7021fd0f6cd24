// Selects the instruction set that all kernels use. Kernels must not include this header: they are compiled
// once per instruction set, and the linker might keep the copy of an inline function that needs the newer
// one.
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace phalanx {

inline bool cpu_has_avx2() {
#ifdef PHALANX_HAVE_AVX2
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("lzcnt") &&
         __builtin_cpu_supports("popcnt");
#else
  return false;
#endif
}

// The environment variable PHALANX_ISA (`baseline` or `avx2`) overrides the choice.
// Throws std::runtime_error if its value is unknown or this processor does not support it.
inline bool select_avx2() {
  const char* value = std::getenv("PHALANX_ISA");
  const std::string wanted = value == nullptr ? "" : value;
  if (wanted.empty()) return cpu_has_avx2();
  if (wanted == "baseline") return false;
  if (wanted != "avx2")
    throw std::runtime_error("PHALANX_ISA must be `baseline` or `avx2`, got `" + wanted + "`");
  if (!cpu_has_avx2())
    throw std::runtime_error("PHALANX_ISA=avx2 is set, but this processor or build has no AVX2");
  return true;
}

inline bool uses_avx2() {
  static const bool selected = select_avx2();
  return selected;
}

inline const char* instruction_set() { return uses_avx2() ? "avx2" : "baseline"; }

}  // namespace phalanx

// Evaluates to the kernel table of the selected instruction set, in the namespace where it is used.
#ifdef PHALANX_HAVE_AVX2
#define PHALANX_SELECT_KERNELS (::phalanx::uses_avx2() ? avx2::kernels : baseline::kernels)
#else
#define PHALANX_SELECT_KERNELS (baseline::kernels)
#endif
