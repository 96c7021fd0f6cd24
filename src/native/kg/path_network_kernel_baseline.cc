// The kernels of the path network for any processor.
#define PHALANX_KERNELS kBaselineKernels
#include "kg/path_network_kernel.inc"
