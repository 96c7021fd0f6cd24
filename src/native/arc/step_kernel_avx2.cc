// The ARC kernels for x86-64 processors with AVX2, BMI and POPCNT; chosen at run time.
#define PHALANX_KERNELS kAvx2Kernels
#define PHALANX_ISA "avx2"
#include "arc/step_kernel.inc"
