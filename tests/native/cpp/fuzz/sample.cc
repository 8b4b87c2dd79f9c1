// Fuzzes what edgepack_run reads: netpbm's pictures and numpy's tensors, several behind each other.

#define main edgepack_run_main
#include "edgepack_run.cc"
#undef main

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  try {
    for (std::size_t at = 0; at < size;) {
      const edgepack::Item item = read_item(bytes, at, "fuzzed");
      if (const auto* frame = std::get_if<edgepack::Frame>(&item))
        static_cast<void>(edgepack::detail::make_pixels(*frame));
      if (const auto* view = std::get_if<edgepack::TensorView>(&item))
        static_cast<void>(edgepack::detail::copy_tensor(*view));
    }
  } catch (const Error&) {
  }
  return 0;
}
