/*
 * Runs this bundle's model from C99, and from any language that calls C: the same as edgepack.hpp.
 *
 *     edgepack_status status;
 *     edgepack_model *model = NULL;
 *     if (edgepack_open("dist/classifier-1.0.0-linux-x86-64", NULL, &model, &status) !=
 * EDGEPACK_OK) { fprintf(stderr, "%s\n  %s\n", status.text, status.hint);
 *     }
 *     const int64_t shape[] = {1, 3, 224, 224};
 *     edgepack_tensor input = {"images", EDGEPACK_FLOAT32, 4, shape, pixels, sizeof pixels};
 *     edgepack_outputs *outputs = NULL;
 *     edgepack_run(model, &input, 1, &outputs, &status);
 *     const edgepack_tensor *scores = edgepack_get_output(outputs, 0);
 *     ...
 *     edgepack_free_outputs(outputs);
 *     edgepack_close(model);
 *
 * Compile src/edgepack_c.cc with it, as C++17, and link with -ldl and -pthread.
 *
 * For bindings, such as Rust's bindgen or Go's cgo:
 *
 * - No function throws, aborts or longjmps: what goes wrong is the code that it returns, with a
 * text and a hint in `status`, which may be NULL. A null pointer where one is needed is
 * EDGEPACK_USAGE; a function that returns no code returns NULL or 0 for it.
 * - Texts are UTF-8 with a zero at the end. What a function returns by pointer belongs to the
 * handle that it was asked of, and lives as long.
 * - A model may be used by several threads at once; outputs belong to one at a time. There is no
 * other state but onnxruntime itself, which a process has once.
 * - Structs and enums only grow at their ends; `edgepack_options` tells by its `size` how much of
 * it a caller knows.
 */

#ifndef EDGEPACK_EDGEPACK_H
#define EDGEPACK_EDGEPACK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What went wrong. The numbers are an int32_t in every function. */
typedef enum edgepack_code {
  EDGEPACK_OK = 0,
  /* A function is called as it cannot be: a null pointer, a variant that the bundle has not. */
  EDGEPACK_USAGE = 1,
  /* The folder is not there, is no bundle, or cannot be read. */
  EDGEPACK_NOT_FOUND = 2,
  /* A file of the bundle is missing, truncated or not as the manifest says. */
  EDGEPACK_BROKEN_BUNDLE = 3,
  /* The manifest is of a schema that this code does not read. */
  EDGEPACK_NEWER_SCHEMA = 4,
  /* No libonnxruntime is found, or it is too old, or there are two. */
  EDGEPACK_NO_RUNTIME = 5,
  /* No variant works on this machine; the text has the reason for each. */
  EDGEPACK_REFUSED = 6,
  /* An input is not what the model takes. */
  EDGEPACK_BAD_INPUT = 7,
  EDGEPACK_OUT_OF_MEMORY = 8,
  /* A fault of this code or of onnxruntime. */
  EDGEPACK_INTERNAL = 9
} edgepack_code;

/* The kind of a tensor's values; the numbers are those of ONNX's TensorProto.DataType. */
typedef enum edgepack_type {
  EDGEPACK_FLOAT32 = 1,
  EDGEPACK_UINT8 = 2,
  EDGEPACK_INT8 = 3,
  EDGEPACK_UINT16 = 4,
  EDGEPACK_INT16 = 5,
  EDGEPACK_INT32 = 6,
  EDGEPACK_INT64 = 7,
  EDGEPACK_BOOL = 9, /* a byte each, 0 or 1 */
  EDGEPACK_FLOAT16 = 10,
  EDGEPACK_FLOAT64 = 11,
  EDGEPACK_UINT32 = 12,
  EDGEPACK_UINT64 = 13
} edgepack_type;

/* How a call ended. Texts that are too long are cut. */
typedef struct edgepack_status {
  int32_t code;
  char text[4096];
  char hint[512]; /* what to do about it */
} edgepack_status;

/* How a bundle is opened: see Options in edgepack.hpp. Fill it with zeros and set `size` to
 * sizeof(edgepack_options); what is NULL is left to the library. */
typedef struct edgepack_options {
  size_t size;
  const char* runtime;    /* the path of libonnxruntime.so */
  const char* variant;    /* use only this one */
  const char* cache;      /* the folder where providers keep engines and compiled models */
  const char* extensions; /* the library of onnxruntime-extensions */
} edgepack_options;

/* Values of an input or output, in C order. */
typedef struct edgepack_tensor {
  const char* name;
  int32_t type;         /* an edgepack_type */
  size_t rank;          /* how many sizes `shape` has */
  const int64_t* shape; /* may be NULL where rank is 0 */
  const void* data;
  size_t bytes; /* that lie at `data` */
} edgepack_tensor;

/* What an input or output of a model looks like. */
typedef struct edgepack_description {
  const char* name;
  int32_t type;
  size_t rank;
  const int64_t* shape;    /* -1 where any size is taken */
  const char* const* dims; /* the names of such dimensions; NULL where a size is fixed */
} edgepack_description;

typedef struct edgepack_model edgepack_model;
typedef struct edgepack_outputs edgepack_outputs;

/* Opens the first variant of a bundle that works on this machine; `options` may be NULL. `*model`
 * is NULL unless EDGEPACK_OK is returned. */
int32_t edgepack_open(const char* folder, const edgepack_options* options, edgepack_model** model,
                      edgepack_status* status);

/* Closes a model, which no thread may be using; NULL is nothing. */
void edgepack_close(edgepack_model* model);

/* The id of the variant in use, and how near its golden outputs were, in dB (200 stands for equal).
 */
const char* edgepack_get_variant(const edgepack_model* model);
double edgepack_get_golden_sqnr_db(const edgepack_model* model);

/* The version of onnxruntime in use. */
const char* edgepack_get_runtime_version(const edgepack_model* model);

/* The variants that come before it, each with the reason why it is not used. */
size_t edgepack_count_passed_over(const edgepack_model* model);
const char* edgepack_get_passed_over_variant(const edgepack_model* model, size_t index);
const char* edgepack_get_passed_over_reason(const edgepack_model* model, size_t index);

/* What the model takes and gives, by index; NULL behind the last. */
size_t edgepack_count_inputs(const edgepack_model* model);
size_t edgepack_count_outputs(const edgepack_model* model);
const edgepack_description* edgepack_describe_input(const edgepack_model* model, size_t index);
const edgepack_description* edgepack_describe_output(const edgepack_model* model, size_t index);

/* Runs the model on `count` inputs. `*outputs` is NULL unless EDGEPACK_OK is returned; it outlives
 * the model. */
int32_t edgepack_run(const edgepack_model* model, const edgepack_tensor* inputs, size_t count,
                     edgepack_outputs** outputs, edgepack_status* status);

/* An output by its index in the model's outputs; NULL behind the last. */
const edgepack_tensor* edgepack_get_output(const edgepack_outputs* outputs, size_t index);

/* Frees the outputs of a run; NULL is nothing. */
void edgepack_free_outputs(edgepack_outputs* outputs);

#ifdef __cplusplus
}
#endif

#endif
