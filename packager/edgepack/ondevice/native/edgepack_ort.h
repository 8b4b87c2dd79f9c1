/* What edgepack_measure.c calls of onnxruntime's C API, declared where there is no header of it.
 *
 * An OrtApi is a list of functions that only grows at its end, so that a place in it never changes
 * (onnxruntime_c_api.cc, "Rules on how to add a new Ort API version"). Each function here stands at
 * its place in onnxruntime_c_api.h; what lies between is not called. All are in version 16. */
#ifndef EDGEPACK_ORT_H
#define EDGEPACK_ORT_H

#include <stddef.h>
#include <stdint.h>

#define ORT_API_VERSION 16
#define ORT_API_CALL

typedef enum { ORT_LOGGING_LEVEL_ERROR = 3 } OrtLoggingLevel;
typedef enum { OrtArenaAllocator = 1 } OrtAllocatorType;
typedef enum { OrtMemTypeDefault = 0 } OrtMemType;
typedef enum { ORT_SEQUENTIAL = 0, ORT_PARALLEL = 1 } ExecutionMode;
typedef enum {
  ORT_DISABLE_ALL = 0,
  ORT_ENABLE_BASIC = 1,
  ORT_ENABLE_EXTENDED = 2,
  ORT_ENABLE_ALL = 99
} GraphOptimizationLevel;
typedef enum {
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT = 1,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8 = 2,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8 = 3,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16 = 4,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16 = 5,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32 = 6,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 = 7,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL = 9,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16 = 10,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE = 11,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32 = 12,
  ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64 = 13
} ONNXTensorElementDataType;

typedef struct OrtAllocator OrtAllocator;
typedef struct OrtEnv OrtEnv;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtRunOptions OrtRunOptions;
typedef struct OrtSession OrtSession;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtStatus OrtStatus;
typedef struct OrtTensorTypeAndShapeInfo OrtTensorTypeAndShapeInfo;
typedef struct OrtValue OrtValue;

typedef void (*OrtLoggingFunction)(void *, OrtLoggingLevel, const char *, const char *, const char *,
                                   const char *);

/* Functions that are not called, from the place FIRST up to the place NEXT. */
#define EDGEPACK_BETWEEN(FIRST, NEXT) void (*between_##FIRST[(NEXT) - (FIRST)])(void)

typedef struct OrtApi {
  EDGEPACK_BETWEEN(0, 2);
  const char *(*GetErrorMessage)(const OrtStatus *);
  EDGEPACK_BETWEEN(3, 4);
  OrtStatus *(*CreateEnvWithCustomLogger)(OrtLoggingFunction, void *, OrtLoggingLevel, const char *,
                                          OrtEnv **);
  EDGEPACK_BETWEEN(5, 7);
  OrtStatus *(*CreateSession)(const OrtEnv *, const char *, const OrtSessionOptions *,
                              OrtSession **);
  EDGEPACK_BETWEEN(8, 9);
  OrtStatus *(*Run)(OrtSession *, const OrtRunOptions *, const char *const *,
                    const OrtValue *const *, size_t, const char *const *, size_t, OrtValue **);
  OrtStatus *(*CreateSessionOptions)(OrtSessionOptions **);
  EDGEPACK_BETWEEN(11, 13);
  OrtStatus *(*SetSessionExecutionMode)(OrtSessionOptions *, ExecutionMode);
  OrtStatus *(*EnableProfiling)(OrtSessionOptions *, const char *);
  EDGEPACK_BETWEEN(15, 17);
  OrtStatus *(*DisableMemPattern)(OrtSessionOptions *);
  EDGEPACK_BETWEEN(18, 19);
  OrtStatus *(*DisableCpuMemArena)(OrtSessionOptions *);
  EDGEPACK_BETWEEN(20, 22);
  OrtStatus *(*SetSessionLogSeverityLevel)(OrtSessionOptions *, int);
  OrtStatus *(*SetSessionGraphOptimizationLevel)(OrtSessionOptions *, GraphOptimizationLevel);
  OrtStatus *(*SetIntraOpNumThreads)(OrtSessionOptions *, int);
  OrtStatus *(*SetInterOpNumThreads)(OrtSessionOptions *, int);
  EDGEPACK_BETWEEN(26, 49);
  OrtStatus *(*CreateTensorWithDataAsOrtValue)(const OrtMemoryInfo *, void *, size_t,
                                               const int64_t *, size_t, ONNXTensorElementDataType,
                                               OrtValue **);
  EDGEPACK_BETWEEN(50, 51);
  OrtStatus *(*GetTensorMutableData)(OrtValue *, void **);
  EDGEPACK_BETWEEN(52, 60);
  OrtStatus *(*GetTensorElementType)(const OrtTensorTypeAndShapeInfo *,
                                     ONNXTensorElementDataType *);
  OrtStatus *(*GetDimensionsCount)(const OrtTensorTypeAndShapeInfo *, size_t *);
  OrtStatus *(*GetDimensions)(const OrtTensorTypeAndShapeInfo *, int64_t *, size_t);
  EDGEPACK_BETWEEN(63, 64);
  OrtStatus *(*GetTensorShapeElementCount)(const OrtTensorTypeAndShapeInfo *, size_t *);
  OrtStatus *(*GetTensorTypeAndShape)(const OrtValue *, OrtTensorTypeAndShapeInfo **);
  EDGEPACK_BETWEEN(66, 69);
  OrtStatus *(*CreateCpuMemoryInfo)(OrtAllocatorType, OrtMemType, OrtMemoryInfo **);
  EDGEPACK_BETWEEN(70, 78);
  OrtStatus *(*GetAllocatorWithDefaultOptions)(OrtAllocator **);
  EDGEPACK_BETWEEN(79, 93);
  void (*ReleaseStatus)(OrtStatus *);
  void (*ReleaseMemoryInfo)(OrtMemoryInfo *);
  EDGEPACK_BETWEEN(95, 96);
  void (*ReleaseValue)(OrtValue *);
  EDGEPACK_BETWEEN(97, 99);
  void (*ReleaseTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo *);
  void (*ReleaseSessionOptions)(OrtSessionOptions *);
  EDGEPACK_BETWEEN(101, 110);
  OrtStatus *(*SessionEndProfiling)(OrtSession *, OrtAllocator *, char **);
  EDGEPACK_BETWEEN(111, 125);
  OrtStatus *(*GetAvailableProviders)(char ***, int *);
  EDGEPACK_BETWEEN(126, 130);
  OrtStatus *(*AddSessionConfigEntry)(OrtSessionOptions *, const char *, const char *);
  EDGEPACK_BETWEEN(131, 216);
  OrtStatus *(*SessionOptionsAppendExecutionProvider)(OrtSessionOptions *, const char *,
                                                      const char *const *, const char *const *,
                                                      size_t);
} OrtApi;

typedef struct OrtApiBase {
  const OrtApi *(*GetApi)(uint32_t version);
  const char *(*GetVersionString)(void);
} OrtApiBase;

#endif
