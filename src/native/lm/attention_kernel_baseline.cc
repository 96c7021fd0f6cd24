// The kernels of attention for any x86-64 or other processor.
#define PHALANX_KERNELS kBaselineKernels
#define PHALANX_ISA "baseline"
#include "lm/attention_kernel.inc"
