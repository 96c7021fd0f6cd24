// The kernels of a language model that writes, for x86-64 processors with AVX2 and FMA; chosen at run time.
#define PHALANX_KERNELS kAvx2Kernels
#include "lm/decode_kernel.inc"
