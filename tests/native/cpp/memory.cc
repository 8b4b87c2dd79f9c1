// Opens a bundle and asks for an answer while one allocation after the other fails.
//
//     memory RUNTIME BUNDLE STEP [STATS]
//
// With a folder for STATS the C++ functions are called, and what they do is counted there; without
// it the C functions are.
//
// Each STEP-th allocation fails once, and then with all that follow it; those of onnxruntime do
// not, as this program has a C++ library of its own. Each call has to say that there is no memory,
// or to give the same answer, and to leave no memory and no file behind; JSON that there was no
// memory for is there when it is asked for again. Prints how many allocations there are.

#include <edgepack/edgepack.h>
#include <edgepack/edgepack.hpp>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <new>
#include <thread>

namespace {

constexpr std::size_t kNever = SIZE_MAX;
std::atomic<std::size_t> fails = kNever;  // the number of the allocation that fails
std::atomic<bool> stays_full = false;
std::atomic<std::size_t> living = 0;
std::atomic<std::size_t> count = 0;
int failures = 0;

void* allocate(std::size_t size) {
  const std::size_t number = count++;
  if (number == fails || (stays_full && number > fails)) throw std::bad_alloc();
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

std::uint8_t pixels[3 * 12 * 10];

void copy(char* into, std::size_t size, const char* text) {
  std::snprintf(into, size, "%s", text);
}

void ask(const edgepack_model* model, edgepack_status* status, Said& said) {
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
      fails = kNever;
      json = edgepack_get_json(answers);
    }
    copy(said.json, sizeof said.json, json);
    expect(edgepack_get_json(answers) == json, "the JSON is made twice");
  }
  edgepack_free_answers(answers);
}

struct NoError {};

/// Calls a function of a model: it throws nothing but `Error` where there is memory for one.
template <class Call>
auto call_model(const Call& call) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    if (stays_full) throw;
    throw NoError();
  }
}

/// The same in C++.
Said call_counted(const char* folder, const edgepack_options& given, edgepack_status* status) {
  Said said;
  edgepack::Options options;
  try {
    options.runtime = given.runtime;
    options.stats = given.stats;
    const std::string path = folder;
    const auto model = call_model([&] { return edgepack::Model::open(path, options); });
    copy(said.variant, sizeof said.variant, model.variant().c_str());
    const auto name = call_model([&] { return model.only_input(); });
    const edgepack::Items items = {{name, edgepack::make_frame(pixels, 12, 10)}};
    const auto answers = call_model([&] { return model.predict(items); });
    for (const auto& each : answers)
      copy(said.json, sizeof said.json, edgepack::to_json(each.second).c_str());
  } catch (const edgepack::Error& error) {
    said.code = static_cast<std::int32_t>(error.code());
    copy(status->text, sizeof status->text, error.what());
  } catch (const std::bad_alloc&) {
    said.code = EDGEPACK_OUT_OF_MEMORY;
    copy(status->text, sizeof status->text, "std::bad_alloc");
  } catch (const NoError&) {
    said.code = -1;
    copy(status->text, sizeof status->text, "a function of the model threw std::bad_alloc");
  }
  return said;
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
  if (argc != 4 && argc != 5) return 2;
  edgepack_options options = {};
  options.size = sizeof options;
  options.runtime = argv[1];
  options.stats = argc == 5 ? argv[4] : "";
  const auto ask_once = argc == 5 ? call_counted : call;
  for (std::size_t k = 0; k < sizeof pixels; ++k) pixels[k] = static_cast<std::uint8_t>(k * 7);
  const auto step = static_cast<std::size_t>(std::atoll(argv[3]));
  static edgepack_status status;
  ask_once(argv[2], options, &status);  // what is made once in a process is there
  const std::size_t before = living;
  const std::ptrdiff_t files = count_files();
  count = 0;
  const Said expected = ask_once(argv[2], options, &status);
  if (expected.code != EDGEPACK_OK) {
    std::printf("code %d: %s\n", expected.code, status.text);
    return 1;
  }
  const std::size_t whole = count;
  for (std::size_t k = 0; k < whole; k += step) {
    for (const bool full : {false, true}) {
      count = 0;
      stays_full = full;
      fails = k;
      const Said said = ask_once(argv[2], options, &status);
      fails = kNever;
      // The thread that counts may have lost its counts, and may end a little later.
      for (int tries = 0; argc == 5 && living != before && tries < 1000; ++tries)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const bool same = said.code == EDGEPACK_OK && (said.is_late || !full || argc == 5) &&
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
