// The kernels of attention for x86-64 processors with AVX2 and FMA; chosen at run time.
#define PHALANX_KERNELS kAvx2Kernels
#define PHALANX_ISA "avx2"
#include "lm/attention_kernel.inc"
