// Fuzzes the readers of labels and priors.

#include <edgepack/detail/layouts.hpp>

#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::size_t lines = edgepack::detail::split_lines(text).size();
  try {
    const edgepack::detail::Table priors = edgepack::detail::read_priors(text);
    if (priors.rows != lines || priors.values.size() != 4 * lines) std::abort();
  } catch (const edgepack::Error&) {
  }
  return 0;
}
