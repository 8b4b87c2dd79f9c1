/* Calls the C functions as a C99 program does, right and wrong; prints what does not hold.
 *
 *     calls RUNTIME BUNDLE
 */

#include <edgepack/edgepack.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures = 0;

static void expect(int holds, const char* what, const edgepack_status* status) {
  if (!holds) {
    printf("%s: code %d: %s\n", what, status->code, status->text);
    ++failures;
  }
}

/* Each function that takes a handle, without one. */
static void call_with_null(edgepack_status* status) {
  edgepack_answers* answers = NULL;
  expect(edgepack_get_variant(NULL) == NULL && edgepack_get_runtime_version(NULL) == NULL &&
             edgepack_get_name(NULL) == NULL && edgepack_get_version(NULL) == NULL,
         "texts of null", status);
  expect(edgepack_get_passed_over_variant(NULL, 0) == NULL &&
             edgepack_get_passed_over_reason(NULL, 0) == NULL,
         "variants of null", status);
  expect(edgepack_count_passed_over(NULL) == 0 && edgepack_count_inputs(NULL) == 0 &&
             edgepack_count_outputs(NULL) == 0,
         "counts of null", status);
  expect(!(edgepack_get_golden_sqnr_db(NULL) > 0), "the closeness of null", status);
  expect(edgepack_describe_input(NULL, 0) == NULL && edgepack_describe_output(NULL, 0) == NULL,
         "descriptions of null", status);
  expect(edgepack_get_output(NULL, 0) == NULL && edgepack_get_answer(NULL, 0) == NULL &&
             edgepack_get_json(NULL) == NULL,
         "results of null", status);
  expect(edgepack_predict(NULL, NULL, 0, NULL, &answers, status) == EDGEPACK_USAGE,
         "answers of a model that is null", status);
  expect(edgepack_predict(NULL, NULL, 0, NULL, NULL, NULL) == EDGEPACK_USAGE, "all null", status);
  expect(edgepack_run(NULL, NULL, 0, NULL, NULL) == EDGEPACK_USAGE, "all null", status);
  expect(edgepack_open(NULL, NULL, NULL, NULL) == EDGEPACK_USAGE, "all null", status);
  expect(answers == NULL, "no answers", status);
  edgepack_close(NULL);
  edgepack_free_outputs(NULL);
  edgepack_free_answers(NULL);
}

static void call_wrongly(const char* folder, const edgepack_options* options,
                         edgepack_status* status) {
  edgepack_model* model = NULL;
  edgepack_outputs* outputs = NULL;
  edgepack_options none;
  memset(&none, 0, sizeof none);
  expect(edgepack_open(NULL, options, &model, status) == EDGEPACK_USAGE, "a folder that is null",
         status);
  expect(edgepack_open(folder, options, NULL, status) == EDGEPACK_USAGE, "a place that is null",
         status);
  expect(edgepack_open(folder, &none, &model, status) == EDGEPACK_USAGE, "options without a size",
         status);
  expect(edgepack_open("/nowhere", options, &model, status) == EDGEPACK_NOT_FOUND, "no folder",
         status);
  expect(status->text[0] != '\0' && status->hint[0] != '\0', "text and hint", status);
  expect(edgepack_open(NULL, options, &model, NULL) == EDGEPACK_USAGE, "a status that is null",
         status);
  expect(edgepack_run(NULL, NULL, 0, &outputs, status) == EDGEPACK_USAGE, "a model that is null",
         status);
  expect(model == NULL && outputs == NULL, "nothing is made", status);
  call_with_null(status);
}

static void give_wrongly(const edgepack_model* model, const edgepack_tensor* right,
                         edgepack_status* status) {
  edgepack_outputs* outputs = NULL;
  edgepack_tensor wrong = *right;
  int64_t shape[8] = {0};
  expect(edgepack_run(model, NULL, 1, &outputs, status) == EDGEPACK_USAGE, "inputs that are null",
         status);
  expect(edgepack_run(model, right, 1, NULL, status) == EDGEPACK_USAGE, "outputs that are null",
         status);
  wrong.name = NULL;
  expect(edgepack_run(model, &wrong, 1, &outputs, status) == EDGEPACK_USAGE, "a name that is null",
         status);
  wrong = *right;
  wrong.name = "no such input";
  expect(edgepack_run(model, &wrong, 1, &outputs, status) == EDGEPACK_BAD_INPUT, "another name",
         status);
  wrong = *right;
  wrong.type = 4711;
  expect(edgepack_run(model, &wrong, 1, &outputs, status) == EDGEPACK_BAD_INPUT, "no type", status);
  wrong.type = right->type == EDGEPACK_UINT8 ? EDGEPACK_INT8 : EDGEPACK_UINT8;
  expect(edgepack_run(model, &wrong, 1, &outputs, status) == EDGEPACK_BAD_INPUT, "another type",
         status);
  wrong = *right;
  wrong.data = NULL;
  expect(edgepack_run(model, &wrong, 1, &outputs, status) == EDGEPACK_BAD_INPUT,
         "data that are null", status);
  wrong = *right;
  wrong.bytes -= 1;
  expect(edgepack_run(model, &wrong, 1, &outputs, status) == EDGEPACK_BAD_INPUT, "a byte less",
         status);
  wrong = *right;
  wrong.rank -= 1;
  expect(edgepack_run(model, &wrong, 1, &outputs, status) == EDGEPACK_BAD_INPUT, "another rank",
         status);
  wrong = *right;
  wrong.shape = NULL;
  expect(edgepack_run(model, &wrong, 1, &outputs, status) == EDGEPACK_USAGE, "a shape that is null",
         status);
  memcpy(shape, right->shape, right->rank * sizeof *shape);
  wrong.shape = shape;
  shape[right->rank - 1] = -5;
  expect(edgepack_run(model, &wrong, 1, &outputs, status) == EDGEPACK_BAD_INPUT, "a size below 0",
         status);
  /* cppcheck-suppress redundantAssignment ; the call above reads it through wrong */
  shape[right->rank - 1] = INT64_MAX;
  expect(edgepack_run(model, &wrong, 1, &outputs, status) == EDGEPACK_BAD_INPUT,
         "a size beyond memory", status);
  expect(edgepack_run(model, NULL, 0, &outputs, status) == EDGEPACK_BAD_INPUT, "no inputs", status);
  expect(outputs == NULL, "no outputs", status);
}

int main(int argc, char** argv) {
  edgepack_status status;
  edgepack_options options;
  edgepack_model* model = NULL;
  edgepack_outputs* outputs = NULL;
  if (argc != 3) return 2;
  memset(&status, 0, sizeof status);
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.runtime = argv[1];
  call_wrongly(argv[2], &options, &status);
  expect(edgepack_open(argv[2], &options, &model, &status) == EDGEPACK_OK, "open", &status);
  if (model == NULL) return 1;
  printf("%s %s %s %.9f %zu\n", edgepack_get_variant(model), edgepack_get_name(model),
         edgepack_get_version(model), edgepack_get_golden_sqnr_db(model),
         edgepack_count_passed_over(model));
  expect(edgepack_get_passed_over_reason(model, edgepack_count_passed_over(model)) == NULL,
         "behind the last", &status);
  expect(edgepack_describe_input(model, edgepack_count_inputs(model)) == NULL,
         "behind the last input", &status);

  const edgepack_description* wanted = edgepack_describe_input(model, 0);
  int64_t shape[8] = {0};
  size_t count = 1;
  for (size_t k = 0; k < wanted->rank && k < 8; ++k) {
    shape[k] = wanted->shape[k] < 0 ? 1 : wanted->shape[k];
    expect((wanted->shape[k] < 0) == (wanted->dims[k] != NULL), "a name for each free size",
           &status);
    count *= (size_t)shape[k];
  }
  float* values = calloc(count, sizeof *values);
  edgepack_tensor input = {wanted->name, wanted->type, wanted->rank,
                           shape,        values,       count * sizeof *values};
  give_wrongly(model, &input, &status);
  expect(edgepack_run(model, &input, 1, &outputs, &status) == EDGEPACK_OK, "run", &status);
  edgepack_close(model); /* outputs outlive it */
  const edgepack_tensor* found = edgepack_get_output(outputs, 0);
  if (found != NULL && found->type == EDGEPACK_FLOAT32)
    printf("%s %zu %a\n", found->name, found->bytes, (double)*(const float*)found->data);
  expect(found != NULL && edgepack_get_output(outputs, 100) == NULL, "the outputs", &status);
  edgepack_free_outputs(outputs);
  free(values);
  return failures == 0 ? 0 : 1;
}
