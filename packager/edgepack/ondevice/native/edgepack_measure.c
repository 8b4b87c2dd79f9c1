/* Measure a model through onnxruntime's C API, where there is no Python: on phones, and on boards.
 *
 *     edgepack_measure MODE --plan FILE [--runtime LIBRARY] [--out FILE] [OPTION VALUE ...]
 *
 * --scenario multi-stream|server|offline measures so, as edgepack_load.py does, in --threads COUNT; queries of
 * multi-stream have --samples-per-query COUNT, those of server arrive as the plan says. Without it: one stream.
 *
 * --plugin NAME=LIBRARY registers a provider's library that is not onnxruntime's own.
 *
 * MODE is one of
 *   about    what the runtime is: {"onnxruntime", "providers", "cpu_count", "plugin"}; the last is
 *            why the plugin gives no provider, or empty; needs no plan
 *   check    create the sessions and compare the goldens
 *   measure  the same, then warm up until steady and time inferences: one process run
 *   create   create the sessions: {"session_create_ns"}
 *   memory   peaks of resident memory: {"baseline_bytes", "loaded_bytes", "peak_bytes", "runs"}
 *   profile  run the first golden under onnxruntime's profiler: {"profile": FILE, "runs"}
 *   serve    answer samples on stdin until it ends; the plan's goldens are not run
 *   clock    the monotonic clock of timed_from_ns: {"ns"}; needs no plan
 *   steady   read windows ("BEGIN_S MEDIAN" each) from stdin, say whether they are steady
 *
 * Prints one JSON document on stdout, and everything else, onnxruntime's log too, to stderr; with
 * --out FILE into FILE and FILE.log, for apps, whose stdout and stderr lead nowhere. Exit codes:
 * 0; 2 the arguments or the plan are wrong; 3 the model does not work here, then the document is
 * {"refused": "session" | "inference" | "provider", "message"}; 4 there would be more latencies
 * than can be kept. Times are nanoseconds of CLOCK_MONOTONIC.
 *
 * The plan says in lines of words what the host has read in the bundle's manifest, so that nothing
 * is parsed here that is not flat. Words are percent-encoded, an empty one is "%"; paths count from
 * the working folder. Lines that belong to a session or golden stand below it.
 *
 *     fetch OUTPUT                        an output that every inference computes, in this order
 *     state NUMBER INPUT                  while timing, the output of this number, from 0, feeds
 *                                         this input of the next inference
 *     session MODEL                       a model's file
 *     threads COUNT                       within an operator; 0: onnxruntime's default
 *     level disabled|basic|extended|all   of graph optimizations
 *     parallel COUNT                      execution mode, over so many inter-op threads
 *     no-arena                            for the memory of the CPU
 *     no-pattern                          of memory
 *     log SEVERITY                        0 (verbose) to 4 (fatal); 3 without this line
 *     config KEY VALUE
 *     provider NAME                       all but the CPU's, in order
 *     option KEY VALUE                    of the provider above
 *     golden SESSION                      inputs for the session of this number, from 0
 *     input NAME DTYPE PATH DIM...        raw little-endian values, in C order
 *     output NAME DTYPE PATH DIM...       what it has to be near
 *     near EXTRA_DB STRIDE                of the output above: taken off of how near it is; every
 *                                         so many-th of its values is in the file and compared
 *     quantities SIZE EXTRA_DB...         instead, where it holds several: by quantity; and how many
 *                                         values of a channel lie behind each other
 *     channels COUNT QUANTITY             so many more channels are of the quantity, from 0
 *     cut OUTPUT AXIS SIZE                before it is compared
 *     schedule PATH                       when the queries of server arrive: nanoseconds from the beginning,
 *                                         64-bit, little-endian, ascending
 *     sensor PATH BYTES                   a file of the system's whose beginning measure reads every half
 *                                         second, in a process of its own; not on iOS
 *
 * A sample for serve is lines, and the bytes of its inputs one after the other behind the last line:
 *
 *     sample SESSION
 *     input NAME DTYPE BYTES DIM...
 *     run
 *
 * An input of a state that is not there is fed what the sample before put out. An answer is as that
 * of edgepack_harness.py: the length of its header (4 bytes, big-endian), the header as JSON with
 * "ns" and "tensors", or "error"; and the bytes of the tensors.
 *
 * It is the counterpart of edgepack_harness.py and edgepack_load.py, and warms up, times and
 * compares as they do. Needs C11, POSIX and onnxruntime_c_api.h of onnxruntime 1.20 or newer, for
 * plugins of 1.22; the library is opened at run time, or with EDGEPACK_LINKED linked in, as on iOS.
 * With EDGEPACK_DECLARED it needs no header but edgepack_ort.h, and takes no plugins.
 */
#ifndef __APPLE__
/* No more than it calls: with _GNU_SOURCE glibc 2.38 and newer give functions that older ones lack. */
#define _POSIX_C_SOURCE 200809L
#endif
#include <ctype.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "edgepack_measure.h"
#if defined EDGEPACK_LINKED
#include <onnxruntime/onnxruntime_c_api.h>
#elif defined EDGEPACK_DECLARED
#include "edgepack_ort.h"
#else
#include "onnxruntime_c_api.h"
#endif

enum { DONE = 0, USAGE = 2, REFUSED = 3, TOO_MANY = 4 };
enum { MAX_WORDS = 40, WARM_UP_ITERATIONS = 10, WINDOW_ITERATIONS = 30, TREND_WINDOWS = 7 };
enum { STEADY_WINDOWS = 3, MEMORY_RUNS = 20, PROFILE_RUNS = 10 };
enum { MAX_SENSOR_BYTES = 65536, SAMPLER_END_MS = 10000 };
static const size_t MAX_LATENCIES = 2000000;
static const int64_t SAMPLE_NS = 500000000;
static const double STEADY_SPREAD = 0.03, TREND_DEVIATIONS = 1.5, TREND_PER_MINUTE = 0.01;
/* As edgepack_load.py: how many times the samples that should fill the duration offline has. */
static const double MORE_SAMPLES = 1.1;
static const double EQUAL_DB = 200.0, INCOMPARABLE_DB = -200.0, MIN_EQUAL_SHARE = 0.99;
/* At least, on providers other than the CPU: they compile, move data and raise clocks. */
static const double COMPILING_WARM_UP_S = 3.0;

typedef struct {
  char *name, *dtype, *path;
  int64_t dims[MAX_WORDS];
  size_t rank, bytes, stride;
  /* One of each for every quantity; and the quantity of each channel. */
  double *extra_db;
  size_t quantity_count, channel_size, channel_count, *quantities;
  void *data;
} Tensor;

typedef struct {
  Tensor *items;
  size_t count;
} Tensors;

typedef struct {
  char *output;
  size_t axis;
  int64_t size;
} Cut;

typedef struct {
  char **keys, **values;
  size_t count;
} Pairs;

typedef struct {
  char *name;
  Pairs options;
} Provider;

typedef struct {
  char *model;
  int threads;
  GraphOptimizationLevel level;
  ExecutionMode mode;
  int inter_op_threads;
  bool arena, pattern;
  int log_severity;
  Pairs config;
  Provider *providers;
  size_t provider_count;
  OrtSession *session;
} Session;

typedef struct {
  size_t output;
  char *input;
} State;

typedef struct {
  size_t session;
  Tensors inputs, outputs;
  Cut *cuts;
  size_t cut_count;
  const char **input_names;
  OrtValue **input_values;
  /* The same, but for a state that another inference put out. */
  OrtValue **fed;
} Golden;

typedef struct {
  char *path;
  size_t bytes;
} Sensor;

typedef struct {
  char **fetched;
  size_t fetched_count;
  State *states;
  size_t state_count;
  /* With a state: what the last timed inference put out, at first nothing. */
  OrtValue **reached;
  Session *sessions;
  size_t session_count;
  Golden *goldens;
  size_t golden_count;
  char *schedule;
  Sensor *sensors;
  size_t sensor_count;
} Plan;

typedef struct {
  const char *mode, *plan, *runtime, *plugin, *out, *profile_prefix, *scenario;
  double duration_s, warm_up_s, window_s, warm_up_cap_s;
  size_t iterations, threads, samples_per_query;
  unsigned at_most_s;
} Arguments;

typedef struct {
  int64_t *latencies_ns;
  size_t count, inferences;
  int64_t from_ns, to_ns;
} Timed;

typedef struct {
  double begin_s, median;
} Window;

typedef struct {
  size_t iterations;
  bool steady;
  double median_ns;
} WarmUp;

static const OrtApi *ort;
static OrtEnv *environment;
static FILE *out;
static jmp_buf leaving;
static int exit_code;
/* Where they led before --out; 0 if they still do. */
static int stdout_and_stderr[2];

static _Noreturn void leave(int code) {
  exit_code = code;
  longjmp(leaving, 1);
}

/* ---- text -------------------------------------------------------------------------------- */

static _Noreturn void wrong(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fputs("edgepack_measure: ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  leave(USAGE);
}

static void *grown(void *items, size_t count, size_t size) {
  /* Doubled at powers of two, so that adding one by one stays cheap. */
  if (count & (count - 1)) return items;
  void *more = realloc(items, (count ? 2 * count : 1) * size);
  if (!more) wrong("out of memory");
  return more;
}

#define ADD(items, count, item)                              \
  ((items) = grown((items), (count), sizeof *(items)),       \
   (items)[(count)++] = (item))

static void *made(size_t bytes) {
  void *memory = calloc(1, bytes ? bytes : 1);
  if (!memory) wrong("out of memory");
  return memory;
}

static void write_string(const char *text) {
  fputc('"', out);
  for (const unsigned char *at = (const unsigned char *)text; *at; at++) {
    if (*at == '"' || *at == '\\')
      fprintf(out, "\\%c", *at);
    else if (*at < 0x20)
      fprintf(out, "\\u%04x", *at);
    else
      fputc(*at, out);
  }
  fputc('"', out);
}

static _Noreturn void refuse(const char *kind, const char *message) {
  fputs("{\"refused\":", out);
  write_string(kind);
  fputs(",\"message\":", out);
  write_string(message);
  fputs("}\n", out);
  leave(REFUSED);
}

static void check(OrtStatus *status, const char *kind) {
  if (!status) return;
  const char *message = strdup(ort->GetErrorMessage(status));
  ort->ReleaseStatus(status);
  refuse(kind, message ? message : "out of memory");
}

/* ---- the plan ---------------------------------------------------------------------------- */

static int digit(char letter) {
  if (letter >= '0' && letter <= '9') return letter - '0';
  letter = (char)tolower(letter);
  return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

static char *decoded(const char *word) {
  char *text = made(strlen(word) + 1), *to = text;
  for (; *word; word++) {
    if (*word == '%' && digit(word[1]) >= 0 && digit(word[2]) >= 0) {
      *to++ = (char)(16 * digit(word[1]) + digit(word[2]));
      word += 2;
    } else if (*word != '%') {
      *to++ = *word;
    }
  }
  return text;
}

static int64_t number(const char *word) {
  char *end;
  errno = 0;
  long long value = strtoll(word, &end, 10);
  if (errno || *end || end == word) wrong("%s is no number", word);
  return value;
}

static double real(const char *word) {
  char *end;
  double value = strtod(word, &end);
  if (!isfinite(value) || *end || end == word) wrong("%s is no number", word);
  return value;
}

static GraphOptimizationLevel level_of(const char *word) {
  if (!strcmp(word, "disabled")) return ORT_DISABLE_ALL;
  if (!strcmp(word, "basic")) return ORT_ENABLE_BASIC;
  if (!strcmp(word, "extended")) return ORT_ENABLE_EXTENDED;
  if (strcmp(word, "all")) wrong("there is no level %s", word);
  return ORT_ENABLE_ALL;
}

static void add_pair(Pairs *pairs, const char *key, const char *value) {
  size_t count = pairs->count;
  ADD(pairs->keys, count, decoded(key));
  ADD(pairs->values, pairs->count, decoded(value));
}

static Tensor tensor_of(char **words, size_t count) {
  Tensor tensor = {0};
  tensor.name = decoded(words[1]);
  tensor.dtype = decoded(words[2]);
  tensor.path = decoded(words[3]);
  tensor.stride = tensor.channel_size = 1;
  ADD(tensor.extra_db, tensor.quantity_count, 0);
  ADD(tensor.quantities, tensor.channel_count, 0);
  for (size_t index = 4; index < count; index++) tensor.dims[tensor.rank++] = number(words[index]);
  return tensor;
}

static void read_line(Plan *plan, char **words, size_t count) {
  const char *what = words[0];
  Session *session = plan->session_count ? &plan->sessions[plan->session_count - 1] : NULL;
  Golden *golden = plan->golden_count ? &plan->goldens[plan->golden_count - 1] : NULL;
  if (!strcmp(what, "fetch") && count == 2) {
    ADD(plan->fetched, plan->fetched_count, decoded(words[1]));
  } else if (!strcmp(what, "state") && count == 3) {
    ADD(plan->states, plan->state_count, ((State){(size_t)number(words[1]), decoded(words[2])}));
  } else if (!strcmp(what, "session") && count == 2) {
    Session fresh = {.model = decoded(words[1]), .level = ORT_ENABLE_ALL, .arena = true,
                     .pattern = true, .log_severity = ORT_LOGGING_LEVEL_ERROR};
    ADD(plan->sessions, plan->session_count, fresh);
  } else if (!strcmp(what, "golden") && count == 2) {
    ADD(plan->goldens, plan->golden_count, ((Golden){.session = (size_t)number(words[1])}));
  } else if (session && !strcmp(what, "threads") && count == 2) {
    session->threads = (int)number(words[1]);
  } else if (session && !strcmp(what, "level") && count == 2) {
    session->level = level_of(words[1]);
  } else if (session && !strcmp(what, "parallel") && count == 2) {
    session->mode = ORT_PARALLEL;
    session->inter_op_threads = (int)number(words[1]);
  } else if (session && !strcmp(what, "no-arena") && count == 1) {
    session->arena = false;
  } else if (session && !strcmp(what, "no-pattern") && count == 1) {
    session->pattern = false;
  } else if (session && !strcmp(what, "log") && count == 2) {
    session->log_severity = (int)number(words[1]);
  } else if (session && !strcmp(what, "config") && count == 3) {
    add_pair(&session->config, words[1], words[2]);
  } else if (session && !strcmp(what, "provider") && count == 2) {
    ADD(session->providers, session->provider_count, ((Provider){.name = decoded(words[1])}));
  } else if (session && session->provider_count && !strcmp(what, "option") && count == 3) {
    add_pair(&session->providers[session->provider_count - 1].options, words[1], words[2]);
  } else if (golden && !strcmp(what, "input") && count >= 4) {
    ADD(golden->inputs.items, golden->inputs.count, tensor_of(words, count));
  } else if (golden && !strcmp(what, "output") && count >= 4) {
    ADD(golden->outputs.items, golden->outputs.count, tensor_of(words, count));
  } else if (golden && golden->outputs.count && !strcmp(what, "near") && count == 3) {
    Tensor *output = &golden->outputs.items[golden->outputs.count - 1];
    output->extra_db[0] = real(words[1]);
    output->stride = (size_t)number(words[2]);
    if (!output->stride) wrong("a stride is 0");
  } else if (golden && golden->outputs.count && !strcmp(what, "quantities") && count >= 3) {
    Tensor *output = &golden->outputs.items[golden->outputs.count - 1];
    output->channel_size = (size_t)number(words[1]);
    output->channel_count = output->quantity_count = 0;
    if (!output->channel_size) wrong("a channel has no values");
    for (size_t index = 2; index < count; index++)
      ADD(output->extra_db, output->quantity_count, real(words[index]));
  } else if (golden && golden->outputs.count && !strcmp(what, "channels") && count == 3) {
    Tensor *output = &golden->outputs.items[golden->outputs.count - 1];
    size_t quantity = (size_t)number(words[2]);
    if (quantity >= output->quantity_count) wrong("there is no quantity %zu", quantity);
    for (int64_t left = number(words[1]); left > 0; left--)
      ADD(output->quantities, output->channel_count, quantity);
  } else if (golden && !strcmp(what, "cut") && count == 4) {
    Cut cut = {decoded(words[1]), (size_t)number(words[2]), number(words[3])};
    ADD(golden->cuts, golden->cut_count, cut);
  } else if (!strcmp(what, "schedule") && count == 2) {
    plan->schedule = decoded(words[1]);
  } else if (!strcmp(what, "sensor") && count == 3) {
    Sensor sensor = {decoded(words[1]), (size_t)number(words[2])};
    if (sensor.bytes > MAX_SENSOR_BYTES) wrong("%s is too long", sensor.path);
    ADD(plan->sensors, plan->sensor_count, sensor);
  } else {
    wrong("the plan has a line that is not known: %s, with %zu words", what, count);
  }
}

static size_t split(char *line, char **words) {
  char *rest = NULL;
  size_t count = 0;
  for (char *word = strtok_r(line, " \n", &rest); word; word = strtok_r(NULL, " \n", &rest)) {
    if (count == MAX_WORDS) wrong("there is a line of more than %d words", MAX_WORDS);
    words[count++] = word;
  }
  return count;
}

static Plan read_plan(const char *path) {
  Plan plan = {0};
  FILE *file = fopen(path, "r");
  if (!file) wrong("%s: %s", path, strerror(errno));
  char *line = NULL;
  size_t size = 0;
  while (getline(&line, &size, file) > 0) {
    char *words[MAX_WORDS];
    size_t count = split(line, words);
    if (count) read_line(&plan, words, count);
  }
  free(line);
  fclose(file);
  if (!plan.fetched_count || !plan.session_count || !plan.golden_count)
    wrong("the plan has no output, session or golden");
  for (size_t index = 0; index < plan.golden_count; index++)
    if (plan.goldens[index].session >= plan.session_count) wrong("a golden is of no session");
  for (size_t index = 0; index < plan.state_count; index++)
    if (plan.states[index].output >= plan.fetched_count) wrong("a state is of no output");
  plan.reached = made(plan.fetched_count * sizeof *plan.reached);
  return plan;
}

static void read_data(Tensor *tensor) {
  FILE *file = fopen(tensor->path, "rb");
  if (!file || fseek(file, 0, SEEK_END)) wrong("%s: %s", tensor->path, strerror(errno));
  tensor->bytes = (size_t)ftell(file);
  rewind(file);
  tensor->data = made(tensor->bytes);
  if (fread(tensor->data, 1, tensor->bytes, file) != tensor->bytes)
    wrong("%s cannot be read", tensor->path);
  fclose(file);
}

/* ---- sessions ---------------------------------------------------------------------------- */

static const struct {
  const char *name;
  ONNXTensorElementDataType type;
  size_t size;
} DTYPES[] = {
    {"float32", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, 4},
    {"float64", ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, 8},
    {"float16", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, 2},
    {"bool", ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL, 1},
    {"int8", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8, 1},
    {"int16", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16, 2},
    {"int32", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, 4},
    {"int64", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, 8},
    {"uint8", ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, 1},
    {"uint16", ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16, 2},
    {"uint32", ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32, 4},
    {"uint64", ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64, 8},
};

static size_t dtype_of(const char *name) {
  for (size_t index = 0; index < sizeof DTYPES / sizeof *DTYPES; index++)
    if (!strcmp(DTYPES[index].name, name)) return index;
  wrong("there is no dtype %s", name);
  return 0;
}

static void *library(const char *path) {
#ifdef EDGEPACK_LINKED
  (void)path;
  return RTLD_DEFAULT;
#else
  if (!path) wrong("--runtime is missing: the path of libonnxruntime.so");
  void *found = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (!found) refuse("runtime", dlerror());
  return found;
#endif
}

static const OrtApiBase *open_runtime(void *runtime) {
#ifdef EDGEPACK_LINKED
  (void)runtime;
  return OrtGetApiBase();
#else
  const OrtApiBase *(*base)(void);
  *(void **)&base = dlsym(runtime, "OrtGetApiBase");
  if (!base) refuse("runtime", "the library has no OrtGetApiBase");
  return base();
#endif
}

/* By its name in the manifest, what the C API calls a provider. Source: the documentation of
 * SessionOptionsAppendExecutionProvider in onnxruntime_c_api.h. */
static const char *registered_name(const char *name) {
  if (!strcmp(name, "XnnpackExecutionProvider")) return "XNNPACK";
  if (!strcmp(name, "CoreMLExecutionProvider")) return "CoreML";
  if (!strcmp(name, "QNNExecutionProvider")) return "QNN";
  return name;
}

static const struct {
  const char *name;
  uint32_t bit;
} NNAPI_FLAGS[] = {{"USE_FP16", 1}, {"USE_NCHW", 2}, {"CPU_DISABLED", 4}, {"CPU_ONLY", 8}};

/* NNAPI has a function of its own, which the library of the Android package exports. Source:
 * nnapi_provider_factory.h, the flags too. Not tried on a phone. */
static void append_nnapi(OrtSessionOptions *options, const Pairs *given, void *runtime) {
  uint32_t flags = 0;
  for (size_t index = 0; index < given->count; index++)
    for (size_t flag = 0; flag < sizeof NNAPI_FLAGS / sizeof *NNAPI_FLAGS; flag++)
      if (!strcmp(given->keys[index], NNAPI_FLAGS[flag].name) && !strcmp(given->values[index], "1"))
        flags |= NNAPI_FLAGS[flag].bit;
  OrtStatus *(*append)(OrtSessionOptions *, uint32_t);
  *(void **)&append = dlsym(runtime, "OrtSessionOptionsAppendExecutionProvider_Nnapi");
  if (!append) refuse("provider", "the runtime has no OrtSessionOptionsAppendExecutionProvider_Nnapi");
  check(append(options, flags), "provider");
}

/* ---- plugins ----------------------------------------------------------------------------- */

#if ORT_API_VERSION >= 22
/* The device of a plugin that the options ask for, as the loaders choose it, or the first if they name
 * a backend's library. Source: onnxruntime_c_api.h of 1.23, of the other functions here, too. */
static const OrtEpDevice *device_of(const char *name, const Pairs *given, bool *is_plugin) {
  OrtHardwareDeviceType wanted = OrtHardwareDeviceType_NPU;
  bool takes_any = false;
  for (size_t index = 0; index < given->count; index++) {
    takes_any |= !strcmp(given->keys[index], "backend_path");
    if (strcmp(given->keys[index], "backend_type")) continue;
    if (!strcmp(given->values[index], "cpu")) wanted = OrtHardwareDeviceType_CPU;
    if (!strcmp(given->values[index], "gpu")) wanted = OrtHardwareDeviceType_GPU;
  }
  const OrtEpDevice *const *devices, *found = NULL;
  size_t count;
  check(ort->GetEpDevices(environment, &devices, &count), "provider");
  for (size_t index = 0; index < count; index++) {
    if (strcmp(ort->EpDevice_EpName(devices[index]), name)) continue;
    *is_plugin = true;
    OrtHardwareDeviceType kind = ort->HardwareDevice_Type(ort->EpDevice_Device(devices[index]));
    if (!found && (takes_any || kind == wanted)) found = devices[index];
  }
  return found;
}

/* Whether a provider is a plugin's; then it is added. */
static bool append_plugin(OrtSessionOptions *options, const Provider *provider) {
  const Pairs *given = &provider->options;
  bool is_plugin = false;
  const OrtEpDevice *device = device_of(provider->name, given, &is_plugin);
  if (!is_plugin) return false;
  if (!device) refuse("provider", "its plugin lists no device of the kind here");
  check(ort->SessionOptionsAppendExecutionProvider_V2(
            options, environment, &device, 1, (const char *const *)given->keys,
            (const char *const *)given->values, given->count),
        "provider");
  return true;
}

/* Let Qualcomm's driver find what it loads into its processor, which lies beside the plugin. Source:
 * Qualcomm's documentation of ADSP_LIBRARY_PATH. Not tried on a phone. */
static void name_folder(const char *path) {
  const char *slash = strrchr(path, '/');
  if (!slash) return;
  char *folder = made((size_t)(slash - path) + 1);
  memcpy(folder, path, (size_t)(slash - path));
  setenv("ADSP_LIBRARY_PATH", folder, 0);
  free(folder);
}

/* Register a provider's library; return why it gives no provider, or nothing. */
static const char *load_plugin(const char *name, const char *path) {
  name_folder(path);
  OrtStatus *status = ort->RegisterExecutionProviderLibrary(environment, name, path);
  if (status) {
    static char said[1000];
    snprintf(said, sizeof said, "%s", ort->GetErrorMessage(status));
    ort->ReleaseStatus(status);
    return said;
  }
  bool is_listed = false;
  device_of(name, &(Pairs){0}, &is_listed);
  return is_listed ? "" : "it lists no device here";
}
#endif

static OrtSessionOptions *options_of(const Session *session, void *runtime, const char *profile) {
  OrtSessionOptions *options;
  check(ort->CreateSessionOptions(&options), "session");
  check(ort->SetSessionLogSeverityLevel(options, session->log_severity), "session");
  check(ort->SetIntraOpNumThreads(options, session->threads), "session");
  check(ort->SetSessionGraphOptimizationLevel(options, session->level), "session");
  check(ort->SetSessionExecutionMode(options, session->mode), "session");
  check(ort->SetInterOpNumThreads(options, session->inter_op_threads), "session");
  if (!session->arena) check(ort->DisableCpuMemArena(options), "session");
  if (!session->pattern) check(ort->DisableMemPattern(options), "session");
  for (size_t index = 0; index < session->config.count; index++)
    check(ort->AddSessionConfigEntry(options, session->config.keys[index],
                                     session->config.values[index]),
          "session");
  if (profile) check(ort->EnableProfiling(options, profile), "session");
  for (size_t index = 0; index < session->provider_count; index++) {
    const Provider *provider = &session->providers[index];
    if (!strcmp(provider->name, "NnapiExecutionProvider")) {
      append_nnapi(options, &provider->options, runtime);
      continue;
    }
#if ORT_API_VERSION >= 22
    if (append_plugin(options, provider)) continue;
#endif
    check(ort->SessionOptionsAppendExecutionProvider(
              options, registered_name(provider->name),
              (const char *const *)provider->options.keys,
              (const char *const *)provider->options.values, provider->options.count),
          "provider");
  }
  return options;
}

static void open_session(Session *session, void *runtime, const char *profile) {
  OrtSessionOptions *options = options_of(session, runtime, profile);
  check(ort->CreateSession(environment, session->model, options, &session->session), "session");
  ort->ReleaseSessionOptions(options);
}

static OrtValue *value_of(const Tensor *tensor) {
  OrtMemoryInfo *memory;
  OrtValue *value;
  check(ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory), "inference");
  check(ort->CreateTensorWithDataAsOrtValue(memory, tensor->data, tensor->bytes, tensor->dims,
                                            tensor->rank, DTYPES[dtype_of(tensor->dtype)].type,
                                            &value),
        "inference");
  ort->ReleaseMemoryInfo(memory);
  return value;
}

static void prepare(Golden *golden) {
  size_t count = golden->inputs.count;
  golden->input_names = made(count * sizeof *golden->input_names);
  golden->input_values = made(count * sizeof *golden->input_values);
  for (size_t index = 0; index < count; index++) {
    Tensor *tensor = &golden->inputs.items[index];
    read_data(tensor);
    golden->input_names[index] = tensor->name;
    golden->input_values[index] = value_of(tensor);
  }
  for (size_t index = 0; index < golden->outputs.count; index++)
    read_data(&golden->outputs.items[index]);
  golden->fed = made(count * sizeof *golden->fed);
  memcpy(golden->fed, golden->input_values, count * sizeof *golden->fed);
}

static OrtStatus *run(const Plan *plan, const Golden *golden, OrtValue *const *inputs,
                      OrtValue **outputs) {
  return ort->Run(plan->sessions[golden->session].session, NULL, golden->input_names,
                  (const OrtValue *const *)inputs, golden->inputs.count,
                  (const char *const *)plan->fetched, plan->fetched_count, outputs);
}

static void release(const Plan *plan, OrtValue **outputs) {
  for (size_t index = 0; index < plan->fetched_count; index++) {
    ort->ReleaseValue(outputs[index]);
    outputs[index] = NULL;
  }
}

/* ---- goldens ----------------------------------------------------------------------------- */

static double half_value(uint16_t bits) {
  int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double value = exponent == 31  ? (fraction ? NAN : INFINITY)
                 : exponent == 0 ? ldexp(fraction, -24)
                                 : ldexp(1024 + fraction, exponent - 25);
  return bits & 0x8000 ? -value : value;
}

static double value_at(const void *data, size_t dtype, size_t index) {
  switch (DTYPES[dtype].type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT: return ((const float *)data)[index];
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE: return ((const double *)data)[index];
    default: return half_value(((const uint16_t *)data)[index]);
  }
}

/* Of the output every so many-th value is compared; the reference has these and no others. */
static double sqnr_db(const Tensor *reference, size_t quantity, const void *output, size_t dtype,
                      size_t count) {
  double noise = 0, signal = 0;
  for (size_t index = 0; index < count; index++) {
    size_t place = index * reference->stride;
    size_t channel = place / reference->channel_size % reference->channel_count;
    if (reference->quantities[channel] != quantity) continue;
    double wanted = value_at(reference->data, dtype, index);
    double found = value_at(output, dtype, place);
    if (!isfinite(wanted)) {
      if (wanted != found && !(isnan(wanted) && isnan(found))) return INCOMPARABLE_DB;
      continue;
    }
    noise += (wanted - found) * (wanted - found);
    signal += wanted * wanted;
  }
  if (noise == 0) return EQUAL_DB;
  if (!isfinite(noise) || signal == 0) return INCOMPARABLE_DB;
  return fmax(INCOMPARABLE_DB, fmin(EQUAL_DB, 10 * log10(signal / noise)));
}

static double equality_db(const void *reference, const void *output, size_t size, size_t count,
                          size_t stride) {
  size_t equal = 0;
  for (size_t index = 0; index < count; index++)
    equal += !memcmp((const char *)reference + index * size,
                     (const char *)output + index * stride * size, size);
  return !count || (double)equal / (double)count >= MIN_EQUAL_SHARE ? EQUAL_DB : INCOMPARABLE_DB;
}

static size_t product(const int64_t *dims, size_t from, size_t to) {
  size_t found = 1;
  for (size_t axis = from; axis < to; axis++) found *= (size_t)dims[axis];
  return found;
}

/* Cut an axis of the values to a size; dims change with it. */
static void cut(char *data, int64_t *dims, size_t rank, size_t axis, int64_t size, size_t bytes) {
  if (axis >= rank || size > dims[axis]) return;
  size_t outer = product(dims, 0, axis), inner = product(dims, axis + 1, rank) * bytes;
  size_t kept = (size_t)size * inner, whole = (size_t)dims[axis] * inner;
  for (size_t block = 0; block < outer; block++)
    memmove(data + block * kept, data + block * whole, kept);
  dims[axis] = size;
}

static double closeness_db(const Golden *golden, const Tensor *wanted, OrtValue *found) {
  OrtTensorTypeAndShapeInfo *info;
  ONNXTensorElementDataType type;
  size_t rank, dtype = dtype_of(wanted->dtype), bytes = DTYPES[dtype].size;
  int64_t dims[MAX_WORDS];
  void *values;
  check(ort->GetTensorTypeAndShape(found, &info), "inference");
  check(ort->GetTensorElementType(info, &type), "inference");
  check(ort->GetDimensionsCount(info, &rank), "inference");
  if (rank <= MAX_WORDS) check(ort->GetDimensions(info, dims, rank), "inference");
  ort->ReleaseTensorTypeAndShapeInfo(info);
  if (type != DTYPES[dtype].type || rank != wanted->rank) return INCOMPARABLE_DB;
  check(ort->GetTensorMutableData(found, &values), "inference");
  for (size_t index = 0; index < golden->cut_count; index++) {
    const Cut *each = &golden->cuts[index];
    if (!strcmp(each->output, wanted->name)) cut(values, dims, rank, each->axis, each->size, bytes);
  }
  if (memcmp(dims, wanted->dims, rank * sizeof *dims)) return INCOMPARABLE_DB;
  size_t stride = wanted->stride, count = (product(dims, 0, rank) + stride - 1) / stride;
  if (wanted->bytes != count * bytes) wrong("%s has not the bytes of its shape", wanted->path);
  if (!wanted->channel_count) wrong("%s has quantities and no channels", wanted->name);
  if (strncmp(wanted->dtype, "float", 5))
    return equality_db(wanted->data, values, bytes, count, stride);
  double worst = EQUAL_DB;
  for (size_t quantity = 0; quantity < wanted->quantity_count; quantity++) {
    double near = sqnr_db(wanted, quantity, values, dtype, count);
    if (near < EQUAL_DB) near = fmax(INCOMPARABLE_DB, near - wanted->extra_db[quantity]);
    worst = fmin(worst, near);
  }
  return worst;
}

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Run a golden and return how near its worst output is; EQUAL_DB if there is none to be near. */
static double golden_db(const Plan *plan, const Golden *golden, int64_t *took_ns) {
  OrtValue **outputs = made(plan->fetched_count * sizeof *outputs);
  int64_t began = now_ns();
  check(run(plan, golden, golden->input_values, outputs), "inference");
  *took_ns = now_ns() - began;
  double worst = EQUAL_DB;
  for (size_t index = 0; index < golden->outputs.count; index++) {
    const Tensor *wanted = &golden->outputs.items[index];
    for (size_t place = 0; place < plan->fetched_count; place++)
      if (!strcmp(plan->fetched[place], wanted->name))
        worst = fmin(worst, closeness_db(golden, wanted, outputs[place]));
  }
  release(plan, outputs);
  free(outputs);
  return worst;
}

/* ---- timing ------------------------------------------------------------------------------ */

static int by_value(const void *left, const void *right) {
  double a = *(const double *)left, b = *(const double *)right;
  return (a > b) - (a < b);
}

static double median(double *values, size_t count) {
  /* cppcheck-suppress uninitvar ; no caller has a count of 0 */
  qsort(values, count, sizeof *values, by_value);
  return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static double median_ns(const Timed *timed) {
  double *values = made(timed->count * sizeof *values);
  for (size_t index = 0; index < timed->count; index++)
    values[index] = (double)timed->latencies_ns[index];
  double found = median(values, timed->count);
  free(values);
  return found;
}

/* Let the state that the inference before put out stand for the golden's. */
static void hand_on(const Plan *plan, Golden *golden) {
  for (size_t index = 0; index < golden->inputs.count; index++)
    for (size_t each = 0; each < plan->state_count; each++)
      if (plan->reached[0] && !strcmp(golden->input_names[index], plan->states[each].input))
        golden->fed[index] = plan->reached[plan->states[each].output];
}

static void keep(const Plan *plan, OrtValue **outputs) {
  release(plan, plan->reached);
  memcpy(plan->reached, outputs, plan->fetched_count * sizeof *outputs);
  memset(outputs, 0, plan->fetched_count * sizeof *outputs);
}

/* Time inferences over all goldens in turn for a duration, and at least so many; with a state each
 * is a frame of one stream. Nothing but the call, the release of outputs and handing on the state
 * stands between the two readings of the clock. */
static Timed timed_inferences(const Plan *plan, double duration_s, size_t iterations) {
  static size_t turn;
  OrtValue **outputs = made(plan->fetched_count * sizeof *outputs);
  Timed timed = {0};
  timed.from_ns = timed.to_ns = now_ns();
  int64_t end = timed.from_ns + (int64_t)(duration_s * 1e9);
  while (timed.to_ns < end || timed.count < iterations) {
    Golden *golden = &plan->goldens[turn++ % plan->golden_count];
    int64_t before = now_ns();
    hand_on(plan, golden);
    OrtStatus *status = run(plan, golden, golden->fed, outputs);
    if (status) check(status, "inference");
    if (plan->state_count) keep(plan, outputs);
    else release(plan, outputs);
    timed.to_ns = now_ns();
    ADD(timed.latencies_ns, timed.count, timed.to_ns - before);
  }
  timed.inferences = timed.count;
  free(outputs);
  return timed;
}

/* ---- scenarios --------------------------------------------------------------------------- */

/* Threads that answer samples in the order of their arrival, of which the caller's is one: as Pool of
 * edgepack_load.py. */
typedef struct {
  const Plan *plan;
  pthread_t *others;
  size_t other_count;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  /* Under the lock: how often there was work, how many are still at it, and whether all is done. */
  size_t round, working;
  bool ended;
  /* Of this round. */
  const int64_t *arrivals_ns;
  int64_t *answered_ns;
  size_t count;
  atomic_size_t next;
  _Atomic(OrtStatus *) failed;
} Pool;

static void sleep_until(int64_t moment_ns) {
  for (int64_t early_ns; (early_ns = moment_ns - now_ns()) > 0;) {
    struct timespec pause = {(time_t)(early_ns / 1000000000), (long)(early_ns % 1000000000)};
    nanosleep(&pause, NULL);
  }
}

static void answer_waiting(Pool *pool, OrtValue **outputs) {
  for (;;) {
    size_t taken = atomic_fetch_add(&pool->next, 1);
    if (taken >= pool->count || atomic_load(&pool->failed)) return;
    const Golden *golden = &pool->plan->goldens[taken % pool->plan->golden_count];
    sleep_until(pool->arrivals_ns[taken]);
    OrtStatus *status = run(pool->plan, golden, golden->input_values, outputs), *none = NULL;
    if (status && !atomic_compare_exchange_strong(&pool->failed, &none, status))
      ort->ReleaseStatus(status);
    release(pool->plan, outputs);
    pool->answered_ns[taken] = now_ns();
  }
}

static void *work_in(void *given) {
  Pool *pool = given;
  OrtValue **outputs = calloc(pool->plan->fetched_count, sizeof *outputs);
  pthread_mutex_lock(&pool->lock);
  for (size_t seen = 0;;) {
    while (pool->round == seen && !pool->ended) pthread_cond_wait(&pool->changed, &pool->lock);
    if (pool->ended) break;
    seen = pool->round;
    pthread_mutex_unlock(&pool->lock);
    if (outputs) answer_waiting(pool, outputs);
    pthread_mutex_lock(&pool->lock);
    pool->working--;
    pthread_cond_broadcast(&pool->changed);
  }
  pthread_mutex_unlock(&pool->lock);
  free(outputs);
  return NULL;
}

static Pool *open_pool(const Plan *plan, size_t threads) {
  Pool *pool = made(sizeof *pool);
  pool->plan = plan;
  pool->others = made(threads * sizeof *pool->others);
  pthread_mutex_init(&pool->lock, NULL);
  pthread_cond_init(&pool->changed, NULL);
  for (; pool->other_count + 1 < threads; pool->other_count++)
    if (pthread_create(&pool->others[pool->other_count], NULL, work_in, pool))
      wrong("there is no thread number %zu", pool->other_count + 2);
  return pool;
}

static void close_pool(Pool *pool) {
  pthread_mutex_lock(&pool->lock);
  pool->ended = true;
  pthread_cond_broadcast(&pool->changed);
  pthread_mutex_unlock(&pool->lock);
  for (size_t index = 0; index < pool->other_count; index++) pthread_join(pool->others[index], NULL);
  free(pool->others);
  free(pool);
}

/* Run a sample for each arrival, write when each was answered, and return when the last was. */
static int64_t answer_all(Pool *pool, const int64_t *arrivals_ns, int64_t *answered_ns, size_t count) {
  OrtValue **outputs = made(pool->plan->fetched_count * sizeof *outputs);
  pthread_mutex_lock(&pool->lock);
  pool->arrivals_ns = arrivals_ns;
  pool->answered_ns = answered_ns;
  pool->count = count;
  atomic_store(&pool->next, 0);
  pool->working = pool->other_count;
  pool->round++;
  pthread_cond_broadcast(&pool->changed);
  pthread_mutex_unlock(&pool->lock);
  answer_waiting(pool, outputs);
  free(outputs);
  pthread_mutex_lock(&pool->lock);
  while (pool->working) pthread_cond_wait(&pool->changed, &pool->lock);
  pthread_mutex_unlock(&pool->lock);
  check(atomic_load(&pool->failed), "inference");
  int64_t last = 0;
  for (size_t index = 0; index < count; index++)
    if (answered_ns[index] > last) last = answered_ns[index];
  return last;
}

/* Answer one query with all samples. */
static Timed run_offline(Pool *pool, size_t samples) {
  int64_t *arrivals_ns = made(samples * sizeof *arrivals_ns);
  int64_t *answered_ns = made(samples * sizeof *answered_ns);
  Timed timed = {.inferences = samples, .from_ns = now_ns()};
  for (size_t index = 0; index < samples; index++) arrivals_ns[index] = timed.from_ns;
  timed.to_ns = answer_all(pool, arrivals_ns, answered_ns, samples);
  ADD(timed.latencies_ns, timed.count, timed.to_ns - timed.from_ns);
  free(arrivals_ns), free(answered_ns);
  return timed;
}

/* Answer queries of several samples for a duration, and at least so many. */
static Timed run_multi_stream(Pool *pool, const Arguments *arguments) {
  size_t samples = arguments->samples_per_query;
  int64_t *arrivals_ns = made(samples * sizeof *arrivals_ns);
  int64_t *answered_ns = made(samples * sizeof *answered_ns);
  Timed timed = {.from_ns = now_ns()};
  timed.to_ns = timed.from_ns;
  int64_t end = timed.from_ns + (int64_t)(arguments->duration_s * 1e9);
  while (timed.to_ns < end || timed.count < arguments->iterations) {
    int64_t before = now_ns();
    for (size_t index = 0; index < samples; index++) arrivals_ns[index] = before;
    timed.to_ns = answer_all(pool, arrivals_ns, answered_ns, samples);
    ADD(timed.latencies_ns, timed.count, timed.to_ns - before);
  }
  timed.inferences = timed.count * samples;
  free(arrivals_ns), free(answered_ns);
  return timed;
}

/* Answer queries that arrive at the moments of the plan's schedule. */
static Timed run_server(Pool *pool) {
  Tensor schedule = {.path = pool->plan->schedule};
  if (!schedule.path) wrong("server needs a schedule");
  read_data(&schedule);
  Timed timed = {.count = schedule.bytes / sizeof(int64_t), .from_ns = now_ns()};
  int64_t *arrivals_ns = schedule.data, started = timed.from_ns;
  timed.inferences = timed.count;
  timed.latencies_ns = made(timed.count * sizeof *timed.latencies_ns);
  for (size_t index = 0; index < timed.count; index++) arrivals_ns[index] += started;
  timed.to_ns = answer_all(pool, arrivals_ns, timed.latencies_ns, timed.count);
  for (size_t index = 0; index < timed.count; index++)
    timed.latencies_ns[index] -= arrivals_ns[index];
  free(schedule.data);
  return timed;
}

static bool are_finite(const void *values, size_t dtype, size_t count) {
  if (strncmp(DTYPES[dtype].name, "float", 5)) return true;
  for (size_t index = 0; index < count; index++)
    if (!isfinite(value_at(values, dtype, index))) return false;
  return true;
}

static bool is_finite(OrtValue *output) {
  OrtTensorTypeAndShapeInfo *info;
  ONNXTensorElementDataType type;
  size_t count;
  void *values;
  check(ort->GetTensorTypeAndShape(output, &info), "inference");
  check(ort->GetTensorElementType(info, &type), "inference");
  check(ort->GetTensorShapeElementCount(info, &count), "inference");
  ort->ReleaseTensorTypeAndShapeInfo(info);
  check(ort->GetTensorMutableData(output, &values), "inference");
  for (size_t dtype = 0; dtype < sizeof DTYPES / sizeof *DTYPES; dtype++)
    if (DTYPES[dtype].type == type) return are_finite(values, dtype, count);
  return true;
}

static bool is_finite_in_goldens(const Plan *plan, const char *name) {
  for (size_t place = 0; place < plan->golden_count; place++) {
    const Tensors *outputs = &plan->goldens[place].outputs;
    for (size_t index = 0; index < outputs->count; index++) {
      const Tensor *golden = &outputs->items[index];
      size_t dtype = dtype_of(golden->dtype);
      if (!strcmp(golden->name, name) &&
          !are_finite(golden->data, dtype, golden->bytes / DTYPES[dtype].size))
        return false;
    }
  }
  return true;
}

static void write_not_finite(const Plan *plan) {
  const char *between = "";
  fputs(",\"not_finite\":[", out);
  for (size_t place = 0; plan->reached[0] && place < plan->fetched_count; place++) {
    const char *name = plan->fetched[place];
    if (is_finite(plan->reached[place]) || !is_finite_in_goldens(plan, name)) continue;
    fputs(between, out);
    write_string(name);
    between = ",";
  }
  fputc(']', out);
}

/* The median slope between all pairs of windows, and the sum of its signs. */
static double trend(const Window *windows, size_t count, int *rising) {
  double slopes[TREND_WINDOWS * TREND_WINDOWS];
  size_t found = 0;
  *rising = 0;
  for (size_t first = 0; first < count; first++)
    for (size_t second = first + 1; second < count; second++) {
      double more = windows[second].median - windows[first].median;
      *rising += (more > 0) - (more < 0);
      slopes[found++] = more / (windows[second].begin_s - windows[first].begin_s);
    }
  return median(slopes, found);
}

/* As is_steady of edgepack_load.py: the last three medians are within 3 %, and the last seven show
 * no trend of 1 % a minute or more, by Mann and Kendall's test and the slope of Theil and Sen. */
static bool is_steady(const Window *windows, size_t count) {
  if (count < STEADY_WINDOWS) return false;
  double last[STEADY_WINDOWS], least = INFINITY, most = 0;
  for (size_t index = 0; index < STEADY_WINDOWS; index++) {
    last[index] = windows[count - STEADY_WINDOWS + index].median;
    least = fmin(least, last[index]);
    most = fmax(most, last[index]);
  }
  if (most > least * (1 + STEADY_SPREAD)) return false;
  size_t recent = count < TREND_WINDOWS ? count : TREND_WINDOWS;
  int rising;
  double slope = trend(windows + count - recent, recent, &rising);
  double per_minute = 60 * slope / fmax(1.0, median(last, STEADY_WINDOWS));
  double n = (double)recent, deviation = sqrt(n * (n - 1) * (2 * n + 5) / 18);
  return fabs(per_minute) < TREND_PER_MINUTE || abs(rising) <= TREND_DEVIATIONS * deviation;
}

static WarmUp warm_up(const Plan *plan, const Arguments *arguments) {
  int64_t deadline = now_ns() + (int64_t)(arguments->warm_up_cap_s * 1e9);
  bool compiles = plan->sessions[0].provider_count > 0;
  double least_s = fmax(arguments->warm_up_s, compiles ? COMPILING_WARM_UP_S : 0);
  Timed first = timed_inferences(plan, least_s, WARM_UP_ITERATIONS);
  WarmUp warm = {first.count, false, median_ns(&first)};
  free(first.latencies_ns);
  Window *windows = NULL;
  size_t count = 0;
  while (!warm.steady && now_ns() < deadline) {
    Timed timed = timed_inferences(plan, arguments->window_s, WINDOW_ITERATIONS);
    warm.iterations += timed.count;
    warm.median_ns = median_ns(&timed);
    free(timed.latencies_ns);
    ADD(windows, count, ((Window){(double)timed.from_ns / 1e9, warm.median_ns}));
    warm.steady = is_steady(windows, count);
  }
  free(windows);
  return warm;
}

static int64_t peak_bytes(void) {
#ifdef __APPLE__
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
#else
  /* ru_maxrss starts at the parent's peak: exec carries it over. */
  FILE *file = fopen("/proc/self/status", "r");
  char line[256];
  long long kilobytes = 0;
  while (file && fgets(line, sizeof line, file))
    if (sscanf(line, "VmHWM: %lld", &kilobytes) == 1) break;
  if (file) fclose(file);
  return kilobytes * 1024;
#endif
}

/* ---- sensors ----------------------------------------------------------------------------- */

/* A process that reads sensors while this one measures. It is forked before onnxruntime is loaded,
 * and waits until it is told to begin; it ends when this process does. */
static struct {
  pid_t child;
  int told, found;
} sampler = {-1, -1, -1};

static void write_reading(const Plan *plan, const int *files, char *text) {
  fprintf(out, "{\"at_ns\":%lld,\"texts\":[", (long long)now_ns());
  for (size_t index = 0; index < plan->sensor_count; index++) {
    if (index) fputc(',', out);
    ssize_t size = files[index] < 0 ? -1 : pread(files[index], text, plan->sensors[index].bytes, 0);
    for (ssize_t at = 0; at < size; at++)
      if (text[at] & 0x80) text[at] = '?';
    if (size >= 0) {
      text[size] = '\0';
      write_string(text);
    } else {
      fputs("null", out);
    }
  }
  fputs("]}", out);
}

static void write_all(int file, const char *text, size_t size) {
  for (ssize_t written; size > 0; text += written, size -= (size_t)written)
    if ((written = write(file, text, size)) <= 0) return;
}

static int64_t cpu_ns(void) {
  struct timespec taken;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &taken);
  return (int64_t)taken.tv_sec * 1000000000 + taken.tv_nsec;
}

/* Read the sensors at once, every half second, and when it is told to end. */
static void sample_until_end(const Plan *plan, int told, int found) {
  char word, *text = made(MAX_SENSOR_BYTES + 1), *said;
  size_t length;
  int *files = made(plan->sensor_count * sizeof *files);
  if (read(told, &word, 1) != 1) return;
  for (size_t index = 0; index < plan->sensor_count; index++)
    files[index] = open(plan->sensors[index].path, O_RDONLY | O_CLOEXEC);
  out = open_memstream(&said, &length);
  if (!out) return;
  int64_t began = now_ns(), began_cpu = cpu_ns();
  fputs("{\"readings\":[", out);
  write_reading(plan, files, text);
  write_all(found, "\n", 1);
  setpriority(PRIO_PROCESS, 0, 19);
  for (bool ended = false; !ended;) {
    int64_t wait_ns = SAMPLE_NS - (now_ns() - began) % SAMPLE_NS;
    struct pollfd end = {.fd = told, .events = POLLIN};
    ended = poll(&end, 1, (int)(wait_ns / 1000000 + 1)) != 0;
    fputc(',', out);
    write_reading(plan, files, text);
  }
  fprintf(out, "],\"interval_s\":%g,\"cpu_ns\":%lld,\"elapsed_ns\":%lld}", (double)SAMPLE_NS / 1e9,
          (long long)(cpu_ns() - began_cpu), (long long)(now_ns() - began));
  fclose(out);
  write_all(found, said, length);
}

static void start_sampler(const Plan *plan) {
  int told[2], found[2];
  if (!plan->sensor_count) return;
  if (pipe(told) || pipe(found)) wrong("there is no pipe: %s", strerror(errno));
  signal(SIGPIPE, SIG_IGN);
  fflush(NULL);
  sampler.child = fork();
  if (sampler.child < 0) wrong("there is no process for sensors: %s", strerror(errno));
  if (!sampler.child) {
    close(told[1]), close(found[0]);
    if (!setjmp(leaving)) sample_until_end(plan, told[0], found[1]);
    _exit(0);
  }
  close(told[0]), close(found[1]);
  sampler.told = told[1];
  sampler.found = found[0];
}

/* Wait for more of what the sampler says; return how many bytes came. */
static size_t hear(char *text, size_t size) {
  struct pollfd more = {.fd = sampler.found, .events = POLLIN};
  ssize_t count = poll(&more, 1, SAMPLER_END_MS) == 1 ? read(sampler.found, text, size) : 0;
  return count > 0 ? (size_t)count : 0;
}

/* Have it begin; it has read all once when this returns. */
static void begin_sampling(void) {
  char word = '\n';
  if (sampler.child < 0) return;
  write_all(sampler.told, &word, 1);
  hear(&word, 1);
}

/* End it, and return what it said; nothing where it did not end, or there is none. */
static char *end_sampling(void) {
  if (sampler.child < 0) return NULL;
  char *said = made(1);
  size_t length = 0;
  close(sampler.told);
  for (size_t count = 1; count;) {
    char block[4096];
    count = hear(block, sizeof block);
    said = realloc(said, length + count + 1);
    if (!said) wrong("out of memory");
    memcpy(said + length, block, count);
    said[length += count] = '\0';
  }
  close(sampler.found);
  kill(sampler.child, SIGKILL);
  waitpid(sampler.child, NULL, 0);
  sampler.child = -1;
  return length && said[length - 1] == '}' ? said : NULL;
}

/* ---- modes ------------------------------------------------------------------------------- */

static void about(const OrtApiBase *base, const char *plugin, const char *problem) {
  char **names;
  int count;
  check(ort->GetAvailableProviders(&names, &count), "runtime");
  fputs("{\"onnxruntime\":", out);
  write_string(base->GetVersionString());
  fputs(",\"providers\":[", out);
  for (int index = 0; index < count; index++) {
    if (index) fputc(',', out);
    write_string(names[index]);
  }
  if (plugin && !*problem) {
    fputc(',', out);
    write_string(plugin);
  }
  fprintf(out, "],\"cpu_count\":%ld,\"plugin\":", sysconf(_SC_NPROCESSORS_ONLN));
  write_string(problem);
  fputs("}\n", out);
}

static int64_t create(Plan *plan, void *runtime) {
  int64_t began = now_ns();
  for (size_t index = 0; index < plan->session_count; index++)
    open_session(&plan->sessions[index], runtime, NULL);
  return now_ns() - began;
}

static void check_count(double expected) {
  if (expected <= (double)MAX_LATENCIES) return;
  fprintf(stderr, "a process run would have about %.0f queries or samples, and %zu can be kept\n",
          expected, MAX_LATENCIES);
  leave(TOO_MANY);
}

static Timed in_scenario(const Plan *plan, const Arguments *arguments, double warm_ns) {
  Pool *pool = open_pool(plan, arguments->threads);
  Timed timed, rehearsed = run_offline(pool, WINDOW_ITERATIONS);
  if (!strcmp(arguments->scenario, "multi-stream")) {
    size_t samples = arguments->samples_per_query;
    double turns = (double)samples / fmin((double)samples, (double)arguments->threads);
    check_count(arguments->duration_s * 1e9 / fmax(1.0, warm_ns * turns));
    timed = run_multi_stream(pool, arguments);
  } else if (!strcmp(arguments->scenario, "server")) {
    timed = run_server(pool);
  } else {
    double sample_ns = (double)(rehearsed.to_ns - rehearsed.from_ns) / (double)WINDOW_ITERATIONS;
    double samples = ceil(MORE_SAMPLES * arguments->duration_s * 1e9 / fmax(1.0, sample_ns));
    samples = fmax((double)arguments->iterations, samples);
    check_count(samples);
    timed = run_offline(pool, (size_t)samples);
  }
  free(rehearsed.latencies_ns);
  close_pool(pool);
  return timed;
}

static Timed measured(const Plan *plan, const Arguments *arguments, WarmUp *warm) {
  *warm = warm_up(plan, arguments);
  if (arguments->scenario) return in_scenario(plan, arguments, warm->median_ns);
  check_count(arguments->duration_s * 1e9 / fmax(1.0, warm->median_ns));
  return timed_inferences(plan, arguments->duration_s, arguments->iterations);
}

static void measure(Plan *plan, void *runtime, const Arguments *arguments) {
  int64_t created_ns = create(plan, runtime), first_ns = 0, took_ns;
  double worst = EQUAL_DB;
  for (size_t index = 0; index < plan->golden_count; index++) {
    prepare(&plan->goldens[index]);
    worst = fmin(worst, golden_db(plan, &plan->goldens[index], &took_ns));
    if (!index) first_ns = took_ns;
  }
  WarmUp warm = {0};
  Timed timed = {0};
  bool timing = !strcmp(arguments->mode, "measure");
  const char *sampled = NULL;
  if (timing) {
    begin_sampling();
    timed = measured(plan, arguments, &warm);
    sampled = end_sampling();
  }
  fprintf(out, "{\"session_create_ns\":%lld,\"first_inference_ns\":%lld,"
               "\"golden_min_sqnr_db\":%.17g",
          (long long)created_ns, (long long)first_ns, worst);
  if (timing) {
    fprintf(out, ",\"warm_up_iterations\":%zu,\"steady\":%s,\"timed_from_ns\":%lld,"
                 "\"timed_to_ns\":%lld,\"inferences\":%zu,\"latencies_ns\":[",
            warm.iterations, warm.steady ? "true" : "false", (long long)timed.from_ns,
            (long long)timed.to_ns, timed.inferences);
    for (size_t index = 0; index < timed.count; index++)
      fprintf(out, "%s%lld", index ? "," : "", (long long)timed.latencies_ns[index]);
    fputc(']', out);
    write_not_finite(plan);
    if (sampled) fprintf(out, ",\"sampled\":%s", sampled);
  }
  fputs("}\n", out);
}

static void memory(Plan *plan, void *runtime) {
  int64_t baseline = peak_bytes(), took_ns;
  create(plan, runtime);
  prepare(&plan->goldens[0]);
  golden_db(plan, &plan->goldens[0], &took_ns);
  int64_t loaded = peak_bytes();
  for (int number_of_run = 0; number_of_run < MEMORY_RUNS; number_of_run++)
    golden_db(plan, &plan->goldens[0], &took_ns);
  fprintf(out, "{\"baseline_bytes\":%lld,\"loaded_bytes\":%lld,\"peak_bytes\":%lld,\"runs\":%d}\n",
          (long long)baseline, (long long)loaded, (long long)peak_bytes(), MEMORY_RUNS);
}

static void profile(Plan *plan, void *runtime, const char *prefix) {
  if (!prefix) wrong("profile needs --profile-prefix");
  Golden *golden = &plan->goldens[0];
  Session *session = &plan->sessions[golden->session];
  OrtAllocator *allocator;
  char *name;
  int64_t took_ns;
  open_session(session, runtime, prefix);
  prepare(golden);
  for (int number_of_run = 0; number_of_run < PROFILE_RUNS; number_of_run++)
    golden_db(plan, golden, &took_ns);
  check(ort->GetAllocatorWithDefaultOptions(&allocator), "inference");
  check(ort->SessionEndProfiling(session->session, allocator, &name), "inference");
  fputs("{\"profile\":", out);
  write_string(name);
  fprintf(out, ",\"runs\":%d}\n", PROFILE_RUNS);
}

/* ---- samples ----------------------------------------------------------------------------- */

static void forget(Tensors *tensors) {
  for (size_t index = 0; index < tensors->count; index++) {
    Tensor *each = &tensors->items[index];
    free(each->name), free(each->dtype), free(each->path);
    free(each->extra_db), free(each->quantities), free(each->data);
  }
  free(tensors->items);
  *tensors = (Tensors){0};
}

/* Describe an output as the answers' header has it; return how many bytes it has. */
static size_t write_head(const char *name, OrtValue *value) {
  OrtTensorTypeAndShapeInfo *info;
  ONNXTensorElementDataType type;
  int64_t dims[MAX_WORDS];
  size_t rank, dtype = 0;
  check(ort->GetTensorTypeAndShape(value, &info), "inference");
  check(ort->GetTensorElementType(info, &type), "inference");
  check(ort->GetDimensionsCount(info, &rank), "inference");
  if (rank > MAX_WORDS) wrong("%s has %zu axes", name, rank);
  check(ort->GetDimensions(info, dims, rank), "inference");
  ort->ReleaseTensorTypeAndShapeInfo(info);
  while (dtype < sizeof DTYPES / sizeof *DTYPES && DTYPES[dtype].type != type) dtype++;
  if (dtype == sizeof DTYPES / sizeof *DTYPES) wrong("%s has a dtype that is not known", name);
  fputs("{\"name\":", out);
  write_string(name);
  fprintf(out, ",\"dtype\":\"%s\",\"shape\":[", DTYPES[dtype].name);
  for (size_t axis = 0; axis < rank; axis++)
    fprintf(out, "%s%lld", axis ? "," : "", (long long)dims[axis]);
  fputs("]}", out);
  return product(dims, 0, rank) * DTYPES[dtype].size;
}

/* Write one message: its header, and the outputs behind it if there is no error. */
static void write_answer(const Plan *plan, OrtValue **outputs, int64_t ns, const char *error) {
  FILE *stream = out;
  char *header = NULL;
  size_t length = 0, count = error ? 0 : plan->fetched_count;
  size_t *sizes = made(plan->fetched_count * sizeof *sizes);
  out = open_memstream(&header, &length);
  if (!out) wrong("out of memory");
  fprintf(out, "{\"ns\":%lld,\"error\":", (long long)ns);
  write_string(error ? error : "");
  fputs(",\"tensors\":[", out);
  for (size_t index = 0; index < count; index++) {
    if (index) fputc(',', out);
    sizes[index] = write_head(plan->fetched[index], outputs[index]);
  }
  fputs("]}", out);
  fclose(out);
  out = stream;
  for (int shift = 24; shift >= 0; shift -= 8) fputc((int)(length >> shift & 255), out);
  fwrite(header, 1, length, out);
  for (size_t index = 0; index < count; index++) {
    void *values;
    check(ort->GetTensorMutableData(outputs[index], &values), "inference");
    fwrite(values, 1, sizes[index], out);
  }
  fflush(out);
  free(header);
  free(sizes);
}

/* Run a sample, with the state that the one before has reached for what it lacks of it. */
static void answer(const Plan *plan, size_t session, const Tensors *inputs) {
  size_t count = inputs->count, most = count + plan->state_count;
  const char **names = made(most * sizeof *names);
  OrtValue **values = made(most * sizeof *values), **outputs;
  outputs = made(plan->fetched_count * sizeof *outputs);
  for (size_t index = 0; index < count; index++) {
    names[index] = inputs->items[index].name;
    values[index] = value_of(&inputs->items[index]);
  }
  size_t given = count;
  for (size_t each = 0; plan->reached[0] && each < plan->state_count; each++) {
    bool is_given = false;
    for (size_t index = 0; index < given; index++)
      is_given |= !strcmp(names[index], plan->states[each].input);
    if (is_given) continue;
    names[count] = plan->states[each].input;
    values[count++] = plan->reached[plan->states[each].output];
  }
  int64_t began = now_ns();
  OrtStatus *status = ort->Run(plan->sessions[session].session, NULL, names,
                               (const OrtValue *const *)values, count,
                               (const char *const *)plan->fetched, plan->fetched_count, outputs);
  int64_t took_ns = now_ns() - began;
  write_answer(plan, outputs, took_ns, status ? ort->GetErrorMessage(status) : NULL);
  if (status) ort->ReleaseStatus(status);
  else if (plan->state_count) keep(plan, outputs);
  else release(plan, outputs);
  for (size_t index = 0; index < given; index++) ort->ReleaseValue(values[index]);
  free(names), free(values), free(outputs);
}

static void serve(Plan *plan, void *runtime, unsigned at_most_s) {
  create(plan, runtime);
  alarm(0); /* whoever asks may pause, and one sample may not last */
  char *line = NULL, *words[MAX_WORDS];
  size_t size = 0, session = 0;
  Tensors inputs = {0};
  while (getline(&line, &size, stdin) > 0) {
    size_t count = split(line, words);
    if (count == 2 && !strcmp(words[0], "sample")) {
      session = (size_t)number(words[1]);
      if (session >= plan->session_count) wrong("there is no session %s", words[1]);
    } else if (count >= 4 && !strcmp(words[0], "input")) {
      ADD(inputs.items, inputs.count, tensor_of(words, count));
    } else if (count == 1 && !strcmp(words[0], "run")) {
      for (size_t index = 0; index < inputs.count; index++) {
        Tensor *tensor = &inputs.items[index];
        tensor->bytes = (size_t)number(tensor->path);
        tensor->data = made(tensor->bytes);
        if (fread(tensor->data, 1, tensor->bytes, stdin) != tensor->bytes)
          wrong("a sample was cut off");
      }
      alarm(at_most_s);
      answer(plan, session, &inputs);
      alarm(0);
      forget(&inputs);
    } else {
      wrong("a sample has a line that is not known");
    }
  }
  free(line);
}

static void steady(void) {
  Window *windows = NULL, window;
  size_t count = 0;
  while (scanf("%lf %lf", &window.begin_s, &window.median) == 2) ADD(windows, count, window);
  fprintf(out, "{\"steady\":%s}\n", is_steady(windows, count) ? "true" : "false");
}

static double positive(const char *option, const char *text) {
  char *end;
  double value = strtod(text, &end);
  if (*end || end == text || !(value >= 0) || isinf(value)) wrong("%s is %s", option, text);
  return value;
}

static Arguments parse(int argc, char **argv) {
  Arguments found = {.duration_s = 10, .warm_up_s = 1, .window_s = 1, .warm_up_cap_s = 60};
  found.iterations = 130;
  found.threads = found.samples_per_query = 1;
  if (argc < 2 || argc % 2) wrong("give a mode, and a value for each option");
  found.mode = argv[1];
  for (int index = 2; index < argc; index += 2) {
    const char *option = argv[index], *value = argv[index + 1];
    if (!strcmp(option, "--plan")) found.plan = value;
    else if (!strcmp(option, "--runtime")) found.runtime = value;
    else if (!strcmp(option, "--plugin")) found.plugin = value;
    else if (!strcmp(option, "--out")) found.out = value;
    else if (!strcmp(option, "--profile-prefix")) found.profile_prefix = value;
    else if (!strcmp(option, "--scenario")) found.scenario = value;
    else if (!strcmp(option, "--threads")) found.threads = (size_t)positive(option, value);
    else if (!strcmp(option, "--samples-per-query"))
      found.samples_per_query = (size_t)positive(option, value);
    else if (!strcmp(option, "--duration-s")) found.duration_s = positive(option, value);
    else if (!strcmp(option, "--iterations")) found.iterations = (size_t)positive(option, value);
    else if (!strcmp(option, "--warm-up-s")) found.warm_up_s = positive(option, value);
    else if (!strcmp(option, "--window-s")) found.window_s = positive(option, value);
    else if (!strcmp(option, "--warm-up-cap-s")) found.warm_up_cap_s = positive(option, value);
    else if (!strcmp(option, "--at-most-s")) found.at_most_s = (unsigned)positive(option, value);
    else wrong("there is no option %s", option);
  }
  if (!found.iterations) wrong("--iterations is 0");
  if (!found.threads || !found.samples_per_query) wrong("--threads or --samples-per-query is 0");
  if (found.scenario && strcmp(found.scenario, "multi-stream") &&
      strcmp(found.scenario, "server") && strcmp(found.scenario, "offline"))
    wrong("there is no scenario %s", found.scenario);
  return found;
}

/* Onnxruntime's own sinks are logcat and Apple's log, where nobody looks for it. */
static void ORT_API_CALL log_line(void *unused, OrtLoggingLevel severity, const char *category,
                                  const char *identifier, const char *place, const char *message) {
  (void)unused;
  (void)severity;
  (void)category;
  (void)identifier;
  fprintf(stderr, "onnxruntime: %s (%s)\n", message, place);
}

static void in_mode(const Arguments *arguments) {
  if (!strcmp(arguments->mode, "steady")) {
    steady();
    return;
  }
  if (!strcmp(arguments->mode, "clock")) {
    fprintf(out, "{\"ns\":%lld}\n", (long long)now_ns());
    return;
  }
  bool is_about = !strcmp(arguments->mode, "about");
  if (!is_about && !arguments->plan) wrong("%s needs --plan", arguments->mode);
  Plan plan = {0};
  if (!is_about) plan = read_plan(arguments->plan);
  start_sampler(&plan);
  void *runtime = library(arguments->runtime);
  const OrtApiBase *base = open_runtime(runtime);
  ort = base->GetApi(ORT_API_VERSION);
  if (!ort) refuse("runtime", "the runtime is older than the header that this was built with");
  check(ort->CreateEnvWithCustomLogger(log_line, NULL, ORT_LOGGING_LEVEL_ERROR, "edgepack",
                                       &environment),
        "runtime");
  const char *problem = "";
  char *plugin = arguments->plugin ? strdup(arguments->plugin) : NULL;
  if (plugin) {
    char *equals = strchr(plugin, '=');
    if (!equals) wrong("--plugin %s is not NAME=LIBRARY", plugin);
    *equals = '\0';
#if ORT_API_VERSION >= 22
    problem = load_plugin(plugin, equals + 1);
#else
    problem = "the program was built with a header of onnxruntime older than 1.22";
#endif
  }
  if (is_about) {
    about(base, plugin, problem);
    return;
  }
  if (!strcmp(arguments->mode, "check") || !strcmp(arguments->mode, "measure"))
    measure(&plan, runtime, arguments);
  else if (!strcmp(arguments->mode, "create"))
    fprintf(out, "{\"session_create_ns\":%lld}\n", (long long)create(&plan, runtime));
  else if (!strcmp(arguments->mode, "memory"))
    memory(&plan, runtime);
  else if (!strcmp(arguments->mode, "serve"))
    serve(&plan, runtime, arguments->at_most_s);
  else if (!strcmp(arguments->mode, "profile"))
    profile(&plan, runtime, arguments->profile_prefix);
  else
    wrong("there is no mode %s", arguments->mode);
}

/* What libraries print to stdout goes to stderr, so that the document stands alone. */
static FILE *claim_stdout(void) {
  int descriptor = dup(1);
  if (descriptor < 0 || dup2(2, 1) < 0) return NULL;
  return fdopen(descriptor, "w");
}

/* Lead stdout and stderr into the file's log, and keep where they led. */
static void claim_both(const char *path) {
  char *log = made(strlen(path) + sizeof ".log");
  int file = open(strcat(strcpy(log, path), ".log"), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  free(log);
  if (file < 0) wrong("%s.log: %s", path, strerror(errno));
  for (int stream = 1; stream <= 2; stream++) {
    stdout_and_stderr[stream - 1] = dup(stream);
    dup2(file, stream);
  }
  close(file);
}

static void give_back(void) {
  fflush(stdout);
  for (int stream = 1; stream <= 2; stream++) {
    int before = stdout_and_stderr[stream - 1];
    stdout_and_stderr[stream - 1] = 0;
    if (before <= 0) continue;
    dup2(before, stream);
    close(before);
  }
}

/* End as the alarm does by itself, but say why: in an app it looks like a crash. */
static void too_long(int signal_number) {
  static const char said[] = "edgepack_measure: it took longer than --at-most-s allows\n";
  ssize_t written = write(2, said, sizeof said - 1);
  (void)written;
  signal(signal_number, SIG_DFL);
  raise(signal_number);
}

int edgepack_measure(int argc, char **argv) {
  /* onnxruntime 1.29 and newer send telemetry unless this is set before they load (Privacy.md). */
  setenv("ORT_DISABLE_TELEMETRY", "1", 1);
  exit_code = DONE;
  if (!setjmp(leaving)) {
    Arguments arguments = parse(argc, argv);
    if (arguments.out) claim_both(arguments.out);
    signal(SIGALRM, too_long);
    if (arguments.at_most_s) alarm(arguments.at_most_s);
    out = arguments.out ? fopen(arguments.out, "w") : claim_stdout();
    if (!out) wrong("%s cannot be written", arguments.out ? arguments.out : "stdout");
    in_mode(&arguments);
  }
  alarm(0);
  if (out && fclose(out)) exit_code = USAGE;
  out = NULL;
  give_back();
  return exit_code;
}

#ifndef EDGEPACK_LINKED
int main(int argc, char **argv) { return edgepack_measure(argc, argv); }
#endif
