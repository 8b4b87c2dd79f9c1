// Fuzzes the reader of JSON: what it takes, written and read again, is written the same.

#include <edgepack/detail/caches.hpp>

#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using edgepack::detail::Json;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const std::string written = edgepack::detail::format_json(Json::parse(text, "fuzzed"));
    if (edgepack::detail::format_json(Json::parse(written, "written")) != written) std::abort();
  } catch (const edgepack::Error&) {  // the text is none, or has a number that is not whole
  }
  return 0;
}
