/* A package's C target needs a source file; all that this one is about is in the header. */
#include "onnxruntime_api.h"
