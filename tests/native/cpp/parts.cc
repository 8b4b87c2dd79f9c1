// Parts of the library that a program does not see, for comparison with Python's.
//
//     parts json < TEXT              the text as json.dumps(..., sort_keys=True) has it
//     parts half                     each binary16 as a number, and the binary16 of numbers between
//     parts shorten < TEXT           an error's text as a reason has it
//     parts root FOLDER PROJECT CACHE  where a bundle's caches lie; CACHE may be empty
//     parts telemetry RUNTIME BUNDLE whether onnxruntime's variable is as before, and its value
//     parts cache RUNTIME BUNDLE     where the first variant keeps its engines
//     parts threads RUNTIME BUNDLE   how many threads a session of the first variant gets
//     parts assigned RUNTIME BUNDLE  the provider of each node of the first variant

#include <edgepack/edgepack.hpp>

#include <cstdio>
#include <iostream>
#include <iterator>

namespace {

using namespace edgepack::detail;

void print_halves() {
  for (unsigned bits = 0; bits < 0x10000; ++bits) {
    const double value = read_half({static_cast<std::uint16_t>(bits)});
    const double next =
        read_half({static_cast<std::uint16_t>((bits & 0x7FFF) == 0x7FFF ? bits : bits + 1)});
    std::printf("%a %u %u\n", value, make_half(value).bits,
                make_half(value + (next - value) / 2).bits);
  }
}

int run(const std::vector<std::string>& words) {
  if (words.at(0) == "half") {
    print_halves();
  } else if (words[0] == "json" || words[0] == "shorten") {
    const std::string text(std::istreambuf_iterator<char>(std::cin), {});
    std::cout << (words[0] == "json" ? format_json(Json::parse(text, "stdin")) : shorten_error(text))
              << '\n';
  } else if (words[0] == "root") {
    std::cout << find_cache_root(words.at(1), words.at(2), words.at(3)).string() << '\n';
  } else if (words[0] == "telemetry") {
    const char* before = getenv("ORT_DISABLE_TELEMETRY");
    static_cast<void>(Runtime::open(words.at(1), words.at(2)));
    const char* behind = getenv("ORT_DISABLE_TELEMETRY");
    std::cout << (before == behind ? "kept " : "set ") << behind << '\n';
  } else {
    const Manifest manifest(words.at(2));
    const Variant& variant = manifest.variants().at(0);
    const Sessions sessions(Runtime::open(words.at(1), words[2]), manifest, "/tmp/cache", "", {});
    if (words[0] == "cache")
      std::cout << sessions.find_cache_folder(variant).value_or("none").string() << '\n';
    if (words[0] == "threads") std::cout << choose_threads(variant.session) << '\n';
    if (words[0] == "assigned") {
      for (const std::string& each : sessions.open(variant).list_assigned())
        std::cout << each << '\n';
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 3;
  }
}
