/*
 * Runs this bundle's model from C99, and from any language that calls C, as edgepack.hpp does.
 *
 *     edgepack_status status;
 *     edgepack_model* model = NULL;
 *     const char* folder = "dist/classifier-1.0.0-linux-x86-64";
 *     if (edgepack_open(folder, NULL, &model, &status) != EDGEPACK_OK) {
 *       fprintf(stderr, "%s\n  %s\n", status.text, status.hint);
 *     }
 *     const int64_t shape[] = {1, 3, 224, 224};
 *     edgepack_tensor input = {"images", EDGEPACK_FLOAT32, 4, shape, pixels, sizeof pixels};
 *     edgepack_outputs* outputs = NULL;
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
 * - A model may be used by several threads at once; outputs and answers belong to one at a time.
 * There is no other state but onnxruntime itself, which a process has once.
 * - Enums grow at their ends, and so do `edgepack_options` and `edgepack_answer_options`, whose
 * `size` tells how much of them a caller knows. The other structs never change.
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
  const char* stats;      /* the folder in which is counted what the model does; "" for none */
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

/* The bundle's name and version, as its project has them. */
const char* edgepack_get_name(const edgepack_model* model);
const char* edgepack_get_version(const edgepack_model* model);

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

/* How the bytes of a frame lie; see Format in edgepack.hpp. */
typedef enum edgepack_format {
  EDGEPACK_YUV420 = 0, /* three planes; NV12 and NV21 too, whose U and V lie in one buffer */
  EDGEPACK_RGB = 1,
  EDGEPACK_BGR = 2,
  EDGEPACK_RGBA = 3,
  EDGEPACK_BGRA = 4,
  EDGEPACK_GRAY = 5
} edgepack_format;

/* The samples of one plane of a frame; strides in bytes. */
typedef struct edgepack_plane {
  const uint8_t* data;
  size_t bytes;
  int64_t row_stride;
  int64_t pixel_stride;
} edgepack_plane;

/* A picture as a camera or a decoder gives it. */
typedef struct edgepack_frame {
  int32_t format; /* an edgepack_format */
  int64_t width;  /* as it lies in memory, in pixels */
  int64_t height;
  size_t planes; /* how many are in `plane` */
  edgepack_plane plane[3];
  int32_t rotation; /* clockwise, to be upright: 0, 90, 180 or 270 */
  int32_t matrix;   /* of YUV: 601 or 709; 0 is 601 */
  int32_t is_video; /* of YUV: whether Y is 16 to 235, and not 0 to 255 */
} edgepack_frame;

/* What one input is made of: exactly one of these is not NULL. */
typedef struct edgepack_item {
  const char* name; /* of the input; NULL where the model needs only one */
  const edgepack_tensor* tensor;
  const edgepack_frame* frame;
  const char* text; /* UTF-8 */
  const void* file; /* the bytes of a picture's or sound's file */
  size_t file_bytes;
} edgepack_item;

/* What one call wants otherwise than the bundle says. Fill it with zeros and set `size`; what is
 * NULL or 0 is what the bundle says. */
typedef struct edgepack_answer_options {
  size_t size;
  const double* score; /* the least score that counts, from 0 to 1 */
  const double* iou;   /* boxes of a class that overlap by more are one, from 0 to 1 */
  int64_t most;        /* how many objects, at most */
  int64_t top;         /* how many classes, at most */
  const char* const* allow; /* the labels of the classes that an answer may hold */
  size_t allow_count;
} edgepack_answer_options;

typedef struct edgepack_class {
  int64_t index;
  const char* label; /* NULL where there is none */
  double score;
} edgepack_class;

typedef struct edgepack_keypoint {
  double x; /* in pixels of the picture as it came */
  double y;
  double score; /* NaN where the model gives none */
} edgepack_keypoint;

typedef struct edgepack_detection {
  int64_t index; /* of its class */
  const char* label;
  double score;
  double left; /* in pixels of the picture as it came, clipped to it */
  double top;
  double right;
  double bottom;
  size_t keypoint_count;
  const edgepack_keypoint* keypoints;
} edgepack_detection;

typedef struct edgepack_decision {
  double score;
  int32_t positive; /* 1 where the score reaches the threshold */
} edgepack_decision;

typedef enum edgepack_kind {
  EDGEPACK_TENSOR = 0, /* `tensor`: vectors, or the output itself */
  EDGEPACK_CLASSES = 1,
  EDGEPACK_DETECTIONS = 2,
  EDGEPACK_DECISIONS = 3,
  EDGEPACK_MASK = 4,
  EDGEPACK_TEXT = 5
} edgepack_kind;

/* The answer in one output; what belongs to other kinds is NULL or 0. */
typedef struct edgepack_answer {
  const char* name;
  int32_t kind; /* an edgepack_kind */
  size_t count; /* of classes, detections or decisions, best first */
  const edgepack_class* classes;
  const edgepack_detection* detections;
  const edgepack_decision* decisions;
  int64_t width; /* of the mask, which is the picture's */
  int64_t height;
  const uint8_t* mask; /* the class of each pixel; 255 where the model did not see it */
  const char* text;
  double score; /* of the text */
  edgepack_tensor tensor;
} edgepack_answer;

typedef struct edgepack_answers edgepack_answers;

/* Makes inputs of pictures, texts, sounds and tensors, runs the model, and reads its outputs;
 * `options` may be NULL. `*answers` is NULL unless EDGEPACK_OK is returned; it outlives the model.
 */
int32_t edgepack_predict(const edgepack_model* model, const edgepack_item* items, size_t count,
                         const edgepack_answer_options* options, edgepack_answers** answers,
                         edgepack_status* status);

/* An answer by index, in the order of the outputs' names; NULL behind the last. */
const edgepack_answer* edgepack_get_answer(const edgepack_answers* answers, size_t index);

/* All answers as one object of JSON, by output. It is made by the first call; NULL where there is
 * no memory for it. */
const char* edgepack_get_json(const edgepack_answers* answers);

/* Frees the answers of a call; NULL is nothing. */
void edgepack_free_answers(edgepack_answers* answers);

#ifdef __cplusplus
}
#endif

#endif
