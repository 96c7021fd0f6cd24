// The ARC kernels for any processor of the family that the wheel is for.
#define PHALANX_KERNELS kBaselineKernels
#define PHALANX_ISA "baseline"
#include "arc/step_kernel.inc"
