#ifdef __AVX512F__
#define VECTOR_BYTES 64
#define ENTRY(name) fedpac_conv_pool_##name##_avx512
#include "conv_pool.h"
#endif
