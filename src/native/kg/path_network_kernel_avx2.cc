// The kernels of the path network for x86-64 processors with AVX2 and FMA; chosen at run time.
#define PHALANX_KERNELS kAvx2Kernels
#include "kg/path_network_kernel.inc"
