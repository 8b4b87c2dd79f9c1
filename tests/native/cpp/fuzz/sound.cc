// Fuzzes the reader of sounds: bytes of a file, described as it describes itself.

#include <edgepack/detail/sounds.hpp>

#include <cmath>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace edgepack;
  if (size < 2) return 0;
  const std::string_view file(reinterpret_cast<const char*>(data + 2), size - 2);
  detail::SoundDescription described{16000, 1, data[0] % 4 == 0 ? 0 : data[0]};
  try {
    const detail::Sound sound = detail::parse_sound(file);
    described.rate = static_cast<std::int64_t>(sound.rate);
    described.channels = static_cast<std::int64_t>(sound.channels);
  } catch (const Error&) {  // what comes says so, too
  }
  try {
    const Tensor tensor =
        detail::make_sound(file, described, data[1] % 2 ? Type::int16 : Type::float32, 1 + data[1] % 3);
    if (tensor.type != Type::float32) return 0;
    for (std::size_t k = 0; k < tensor.count(); ++k) {
      if (!std::isfinite(tensor.data<float>()[k])) std::abort();
    }
  } catch (const Error&) {
  }
  return 0;
}
