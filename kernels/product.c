#include "kernels/product.h"
#include "kernels/simd.h"

#define ROWS 4u /* of a block */

#define FORM generic
#define TARGET
#define LANES   4u
#define VECTORS 2u
#include "kernels/product_block.h"

#define FORM    avx2
#define TARGET  WEIR_TARGET_AVX2
#define LANES   8u
#define VECTORS 2u
#include "kernels/product_block.h"

#define FORM    avx512
#define TARGET  WEIR_TARGET_AVX512
#define LANES   16u
#define VECTORS 4u
#include "kernels/product_block.h"
