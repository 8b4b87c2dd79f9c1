// Opens a bundle and asks for an answer while one allocation after the other fails.
//
//     memory RUNTIME BUNDLE STEP
//
// Each STEP-th allocation fails once, and then with all that follow it; those of onnxruntime do
// not, as this program has a C++ library of its own. Each call has to say that there is no memory,
// or to give the same answer, and to leave no memory and no file behind; JSON that there was no
// memory for is there when it is asked for again. Prints how many allocations there are.

#include <edgepack/edgepack.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <new>

namespace {

constexpr std::size_t kNever = SIZE_MAX;
std::size_t left_over = kNever;  // how many allocations succeed
bool stays_full = false;
std::size_t living = 0;
std::size_t count = 0;
int failures = 0;

void* allocate(std::size_t size) {
  ++count;
  if (left_over == 0) {
    if (!stays_full) left_over = kNever;
    throw std::bad_alloc();
  }
  if (left_over != kNever) --left_over;
  void* made = std::malloc(size);
  if (made == nullptr) throw std::bad_alloc();
  ++living;
  return made;
}

void give_back(void* made) noexcept {
  if (made == nullptr) return;
  --living;
  std::free(made);
}

struct Said {
  std::int32_t code = 0;
  char variant[64] = {};
  char json[4096] = {};
  bool is_late = false;  // the JSON was there at the second call only
};

void expect(bool holds, const char* otherwise) {
  if (!holds) {
    std::puts(otherwise);
    ++failures;
  }
}

void copy(char* into, std::size_t size, const char* text) {
  std::snprintf(into, size, "%s", text);
}

void ask(const edgepack_model* model, edgepack_status* status, Said& said) {
  static std::uint8_t pixels[3 * 12 * 10];
  for (std::size_t k = 0; k < sizeof pixels; ++k) pixels[k] = static_cast<std::uint8_t>(k * 7);
  edgepack_frame frame = {};
  frame.format = EDGEPACK_RGB;
  frame.width = 12;
  frame.height = 10;
  frame.planes = 1;
  frame.plane[0] = {pixels, sizeof pixels, 36, 3};
  edgepack_item item = {};
  item.frame = &frame;
  edgepack_answers* answers = nullptr;
  said.code = edgepack_predict(model, &item, 1, nullptr, &answers, status);
  if (answers != nullptr) {
    const std::size_t before = count;
    const char* json = edgepack_get_json(answers);
    expect(count != before, "the JSON is made before it is asked for");
    said.is_late = json == nullptr;
    if (said.is_late) {
      left_over = kNever;
      json = edgepack_get_json(answers);
    }
    copy(said.json, sizeof said.json, json);
    expect(edgepack_get_json(answers) == json, "the JSON is made twice");
  }
  edgepack_free_answers(answers);
}

Said call(const char* folder, const edgepack_options& options, edgepack_status* status) {
  Said said;
  edgepack_model* model = nullptr;
  said.code = edgepack_open(folder, &options, &model, status);
  if (model != nullptr) {
    copy(said.variant, sizeof said.variant, edgepack_get_variant(model));
    ask(model, status, said);
  }
  edgepack_close(model);
  return said;
}

std::ptrdiff_t count_files() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

}  // namespace

void* operator new(std::size_t size) { return allocate(size); }
void* operator new[](std::size_t size) { return allocate(size); }
void operator delete(void* made) noexcept { give_back(made); }
void operator delete[](void* made) noexcept { give_back(made); }
void operator delete(void* made, std::size_t) noexcept { give_back(made); }
void operator delete[](void* made, std::size_t) noexcept { give_back(made); }

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  edgepack_options options = {};
  options.size = sizeof options;
  options.runtime = argv[1];
  const auto step = static_cast<std::size_t>(std::atoll(argv[3]));
  static edgepack_status status;
  call(argv[2], options, &status);  // what is made once in a process is there
  const std::size_t before = living;
  const std::ptrdiff_t files = count_files();
  count = 0;
  const Said expected = call(argv[2], options, &status);
  if (expected.code != EDGEPACK_OK) {
    std::printf("code %d: %s\n", expected.code, status.text);
    return 1;
  }
  const std::size_t whole = count;
  for (std::size_t k = 0; k < whole; k += step) {
    for (const bool full : {false, true}) {
      left_over = k;
      stays_full = full;
      const Said said = call(argv[2], options, &status);
      left_over = kNever;
      const bool same = said.code == EDGEPACK_OK && (said.is_late || !full) &&
                        std::strcmp(said.variant, expected.variant) == 0 &&
                        std::strcmp(said.json, expected.json) == 0;
      const bool told = said.code == EDGEPACK_OUT_OF_MEMORY && status.text[0] != '\0';
      if ((same || told) && living == before) continue;
      std::printf("allocation %zu%s: code %d, %s, %zd left: %s\n", k, full ? " and all others" : "",
                  said.code, said.variant, living - before, status.text);
      living = before;
      if (++failures == 20) return 1;
    }
  }
  expect(count_files() == files, "files stay open");
  std::printf("%zu allocations\n", whole);
  return failures == 0 ? 0 : 1;
}
