/* Asks edgepack_predict for answers, right and wrong, and prints them as JSON lines.
 *
 *     predict RUNTIME BUNDLE WIDTH HEIGHT <RGB
 *     predict RUNTIME BUNDLE text <TEXT
 *     predict RUNTIME BUNDLE sound <WAV
 */
#include <edgepack/edgepack.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static edgepack_status status;

static void need(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "%s: %d %s\n", what, (int)status.code, status.text);
  exit(1);
}

static void refuse(const edgepack_model* model, const edgepack_item* item, size_t count,
                   const edgepack_answer_options* options, int32_t code, const char* what) {
  edgepack_answers* answers = (edgepack_answers*)(void*)&status;
  need(edgepack_predict(model, item, count, options, &answers, &status) == code, what);
  need(answers == NULL && status.text[0] != '\0' && status.hint[0] != '\0', what);
}

/* Prints the answers to a text or a sound, or what is said of it, and asks for wrong ones. */
static void answer_other(const edgepack_model* model, int is_text) {
  static char read[1 << 20];
  const size_t count = fread(read, 1, sizeof read - 1, stdin);
  /* As long as it is, so that sanitizers see what is read behind it. */
  char* bytes = calloc(count + 1, 1);
  if (bytes == NULL) exit(1);
  memcpy(bytes, read, count);
  edgepack_item item;
  memset(&item, 0, sizeof item);
  if (is_text) {
    item.text = bytes;
  } else {
    item.file = bytes;
    item.file_bytes = count;
  }
  edgepack_answers* answers = NULL;
  if (edgepack_predict(model, &item, 1, NULL, &answers, &status) == EDGEPACK_OK)
    puts(edgepack_get_json(answers));
  else
    printf("\"%d: %s\"\n", (int)status.code, status.text);
  edgepack_free_answers(answers);
  edgepack_item other = item;
  other.text = is_text ? NULL : "a text";
  other.file = is_text ? "a file" : NULL;
  other.file_bytes = is_text ? 6 : 0;
  refuse(model, &other, 1, NULL, EDGEPACK_BAD_INPUT, "the other kind");
  other = item;
  other.text = is_text ? "\xC3" : NULL;
  other.file_bytes = 3;
  refuse(model, &other, 1, NULL, EDGEPACK_BAD_INPUT, "cut");
  if (is_text) {
    const int64_t shape[] = {1, 1}, one = 1;
    const edgepack_tensor mask = {NULL, EDGEPACK_INT64, 2, shape, &one, sizeof one};
    const edgepack_item items[2] = {item, {"attention_mask", &mask, NULL, NULL, NULL, 0}};
    refuse(model, items, 2, NULL, EDGEPACK_BAD_INPUT, "a mask beside the text");
    need(strcmp(status.text, "the input 'attention_mask' is made of the text: leave it out") == 0,
         "what is said of a mask beside the text");
  }
  free(bytes);
}

int main(int count, char** words) {
  need(count >= 4, "usage");
  edgepack_options options;
  memset(&options, 0, sizeof options);
  options.size = sizeof options;
  options.runtime = words[1];
  edgepack_model* model = NULL;
  need(edgepack_open(words[2], &options, &model, &status) == EDGEPACK_OK, "open");

  if (strcmp(words[3], "text") == 0 || strcmp(words[3], "sound") == 0) {
    answer_other(model, words[3][0] == 't');
    edgepack_close(model);
    return 0;
  }
  need(count == 5, "usage");
  const long width = atol(words[3]), height = atol(words[4]);
  const size_t bytes = (size_t)(width * height * 3);
  uint8_t* pixels = malloc(bytes);
  need(pixels != NULL && fread(pixels, 1, bytes, stdin) == bytes, "stdin");
  edgepack_frame frame;
  memset(&frame, 0, sizeof frame);
  frame.format = EDGEPACK_RGB;
  frame.width = width;
  frame.height = height;
  frame.planes = 1;
  frame.plane[0].data = pixels;
  frame.plane[0].bytes = bytes;
  frame.plane[0].row_stride = width * 3;
  frame.plane[0].pixel_stride = 3;
  edgepack_item item;
  memset(&item, 0, sizeof item);
  item.frame = &frame;

  edgepack_answers* answers = NULL;
  need(edgepack_predict(model, &item, 1, NULL, &answers, &status) == EDGEPACK_OK, "predict");
  puts(edgepack_get_json(answers));
  for (size_t k = 0; edgepack_get_answer(answers, k) != NULL; ++k) {
    const edgepack_answer* answer = edgepack_get_answer(answers, k);
    fprintf(stderr, "%s %d %zu", answer->name, (int)answer->kind, answer->count);
    for (size_t each = 0; each < answer->count && answer->detections != NULL; ++each) {
      const edgepack_detection* found = &answer->detections[each];
      fprintf(stderr, " %ld %s %.6f %.6f", (long)found->index, found->label ? found->label : "-",
              found->score, found->right);
    }
    for (size_t each = 0; each < answer->count && answer->classes != NULL; ++each)
      fprintf(stderr, " %ld %.6f", (long)answer->classes[each].index, answer->classes[each].score);
    if (answer->text != NULL) fprintf(stderr, " %s %.6f", answer->text, answer->score);
    fputc('\n', stderr);
  }
  edgepack_free_answers(answers);

  edgepack_answer_options wanted;
  memset(&wanted, 0, sizeof wanted);
  refuse(model, &item, 1, &wanted, EDGEPACK_USAGE, "options without a size");
  const double wrong = 2;
  wanted.size = sizeof wanted;
  wanted.score = &wrong;
  refuse(model, &item, 1, &wanted, EDGEPACK_USAGE, "a score of 2");
  refuse(NULL, &item, 1, NULL, EDGEPACK_USAGE, "no model");
  refuse(model, NULL, 1, NULL, EDGEPACK_USAGE, "no items");
  need(edgepack_predict(model, &item, 1, NULL, NULL, &status) == EDGEPACK_USAGE, "no place");
  edgepack_item both = item;
  both.text = "both";
  refuse(model, &both, 1, NULL, EDGEPACK_USAGE, "two things");
  edgepack_item neither = item;
  neither.frame = NULL;
  refuse(model, &neither, 1, NULL, EDGEPACK_USAGE, "nothing");
  neither.text = "a text";
  refuse(model, &neither, 1, NULL, EDGEPACK_BAD_INPUT, "a text for a picture");
  edgepack_item named = item;
  named.name = "none";
  refuse(model, &named, 1, NULL, EDGEPACK_BAD_INPUT, "no such input");
  const edgepack_frame good = frame;
  frame.planes = 4;
  refuse(model, &item, 1, NULL, EDGEPACK_BAD_INPUT, "four planes");
  frame = good;
  frame.plane[0].data = NULL;
  refuse(model, &item, 1, NULL, EDGEPACK_BAD_INPUT, "no bytes");
  frame = good;
  frame.plane[0].bytes -= 1;
  refuse(model, &item, 1, NULL, EDGEPACK_BAD_INPUT, "a byte too few");
  frame = good;
  frame.plane[0].row_stride = INT64_MAX;
  refuse(model, &item, 1, NULL, EDGEPACK_BAD_INPUT, "a row without an end");
  frame = good;
  frame.height = INT64_MAX;
  refuse(model, &item, 1, NULL, EDGEPACK_BAD_INPUT, "a height without an end");
  frame = good;
  frame.format = 17;
  refuse(model, &item, 1, NULL, EDGEPACK_BAD_INPUT, "no format");
  need(edgepack_get_answer(NULL, 0) == NULL && edgepack_get_json(NULL) == NULL, "no answers");
  edgepack_free_answers(NULL);
  edgepack_close(model);
  free(pixels);
  return 0;
}
