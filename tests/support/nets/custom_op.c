// A library with one custom operator: y = x where x is positive, else bend * x.
//
// The macros plant faults: another name (NAME), another API (API), other values (SCALE); SHAPES has it
// say the shape of its output.
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "onnxruntime_c_api.h"

#ifndef NAME
#define NAME "Bend"
#endif
#ifndef API
#define API ORT_API_VERSION
#endif
#ifndef SCALE
#define SCALE 1.0f
#endif
#define MOST_AXES 8

static const OrtApi *api;

static void *ORT_API_CALL create(const OrtCustomOp *op, const OrtApi *given,
                                 const OrtKernelInfo *info) {
  (void)op;
  (void)given;
  float *bend = malloc(sizeof *bend);
  if (bend == NULL) {
    abort();
  }
  OrtStatus *status = api->KernelInfoGetAttribute_float(info, "bend", bend);
  if (status != NULL) {
    api->ReleaseStatus(status);
    *bend = 0.25f;
  }
  return bend;
}

static OrtStatus *bend_all(const float *bend, OrtKernelContext *context) {
  const OrtValue *given;
  OrtValue *made;
  OrtTensorTypeAndShapeInfo *info;
  size_t rank, count;
  int64_t sizes[MOST_AXES];
  void *in, *out;
  OrtStatus *status;
  if ((status = api->KernelContext_GetInput(context, 0, &given)) ||
      (status = api->GetTensorTypeAndShape(given, &info))) {
    return status;
  }
  if (!(status = api->GetDimensionsCount(info, &rank)) && rank > MOST_AXES) {
    status = api->CreateStatus(ORT_INVALID_ARGUMENT, "too many axes");
  }
  if (!status && !(status = api->GetDimensions(info, sizes, rank))) {
    status = api->GetTensorShapeElementCount(info, &count);
  }
  api->ReleaseTensorTypeAndShapeInfo(info);
  if (status || (status = api->KernelContext_GetOutput(context, 0, sizes, rank, &made)) ||
      (status = api->GetTensorMutableData((OrtValue *)given, &in)) ||
      (status = api->GetTensorMutableData(made, &out))) {
    return status;
  }
  for (size_t i = 0; i < count; i++) {
    const float x = ((const float *)in)[i];
    ((float *)out)[i] = SCALE * (x > 0.0f ? x : *bend * x);
  }
  return NULL;
}

// cppcheck-suppress constParameterCallback  // onnxruntime's type of it
static OrtStatus *ORT_API_CALL compute(void *kernel, OrtKernelContext *context) {
  return bend_all(kernel, context);
}

static void ORT_API_CALL destroy(void *kernel) { free(kernel); }

static const char *ORT_API_CALL name(const OrtCustomOp *op) {
  (void)op;
  return NAME;
}

static const char *ORT_API_CALL provider(const OrtCustomOp *op) {
  (void)op;
  return NULL;
}

static size_t ORT_API_CALL one(const OrtCustomOp *op) {
  (void)op;
  return 1;
}

static int ORT_API_CALL arity(const OrtCustomOp *op) {
  (void)op;
  return 1;
}

static ONNXTensorElementDataType ORT_API_CALL type(const OrtCustomOp *op, size_t index) {
  (void)op;
  (void)index;
  return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
}

static OrtCustomOpInputOutputCharacteristic ORT_API_CALL required(const OrtCustomOp *op,
                                                                  size_t index) {
  (void)op;
  (void)index;
  return INPUT_OUTPUT_REQUIRED;
}

static OrtMemType ORT_API_CALL memory(const OrtCustomOp *op, size_t index) {
  (void)op;
  (void)index;
  return OrtMemTypeDefault;
}

#ifdef SHAPES
static OrtStatus *ORT_API_CALL shape(const OrtCustomOp *op, OrtShapeInferContext *context) {
  (void)op;
  OrtTensorTypeAndShapeInfo *info;
  OrtStatus *status = api->ShapeInferContext_GetInputTypeShape(context, 0, &info);
  return status ? status : api->ShapeInferContext_SetOutputTypeShape(context, 0, info);
}
#endif

static OrtCustomOp operation = {
    .version = ORT_API_VERSION,
    .GetName = name,
    .GetExecutionProviderType = provider,
    .GetInputType = type,
    .GetInputTypeCount = one,
    .GetOutputType = type,
    .GetOutputTypeCount = one,
    .KernelDestroy = destroy,
    .GetInputCharacteristic = required,
    .GetOutputCharacteristic = required,
    .GetInputMemoryType = memory,
    .GetVariadicInputMinArity = arity,
    .GetVariadicInputHomogeneity = arity,
    .GetVariadicOutputMinArity = arity,
    .GetVariadicOutputHomogeneity = arity,
    .CreateKernel = create,
    .KernelComputeV2 = compute,
#ifdef SHAPES
    .InferOutputShapeFn = shape,
#endif
};

OrtStatus *ORT_API_CALL RegisterCustomOps(OrtSessionOptions *options, const OrtApiBase *base) {
  OrtCustomOpDomain *domain;
  OrtStatus *status;
  api = base->GetApi(API);
  if ((status = api->CreateCustomOpDomain("test.bend", &domain)) ||
      (status = api->CustomOpDomain_Add(domain, &operation))) {
    return status;
  }
  return api->AddCustomOpDomain(options, domain);
}
