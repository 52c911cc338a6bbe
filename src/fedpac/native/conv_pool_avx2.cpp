#ifdef __AVX2__
#define VECTOR_BYTES 32
#define ENTRY(name) fedpac_conv_pool_##name##_avx2
#include "conv_pool.h"
#endif
