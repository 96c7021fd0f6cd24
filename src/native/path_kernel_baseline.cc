// The kernels of the path network for any processor.
#define PHALANX_KERNELS kBaselineKernels
#include "path_kernel.inc"
