// Fuzzes what edgepack_run reads: netpbm's pictures and numpy's tensors, several behind each other.

#include <sstream>

#define main edgepack_run_main
#include "edgepack_run.cc"
#undef main

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::istringstream stream(std::string(reinterpret_cast<const char*>(data), size));
  std::cin.rdbuf(stream.rdbuf());
  std::cin.clear();
  try {
    Source source("-");
    while (const auto item = source.read()) {
      if (const auto* frame = std::get_if<edgepack::Frame>(&*item))
        static_cast<void>(edgepack::detail::make_pixels(*frame));
      if (const auto* view = std::get_if<edgepack::TensorView>(&*item))
        static_cast<void>(edgepack::detail::copy_tensor(*view));
    }
  } catch (const Error&) {
  }
  return 0;
}
