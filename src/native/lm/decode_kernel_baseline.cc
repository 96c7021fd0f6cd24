// The kernels of a language model that writes, for any x86-64 or other processor.
#define PHALANX_KERNELS kBaselineKernels
#include "lm/decode_kernel.inc"
