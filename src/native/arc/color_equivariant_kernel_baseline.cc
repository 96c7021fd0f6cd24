// The kernels of color planes for any x86-64 or other processor.
#define PHALANX_KERNELS kBaselineKernels
#define PHALANX_ISA "baseline"
#include "arc/color_equivariant_kernel.inc"
