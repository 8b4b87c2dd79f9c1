/* A package's C target needs a source file; the code is in the header. */
#include "onnxruntime_api.h"
