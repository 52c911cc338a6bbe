#define VECTOR_BYTES 16
#define ENTRY(name) fedpac_conv_pool_##name##_plain
#include "conv_pool.h"
