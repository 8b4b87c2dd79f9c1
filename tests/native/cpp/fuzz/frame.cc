// Fuzzes frames: sizes, strides and planes of every kind, made a picture and then an input.

#include <edgepack/detail/frames.hpp>
#include <edgepack/detail/images.hpp>

#include <fuzzer/FuzzedDataProvider.h>

namespace {

using edgepack::detail::ImageDescription;
using edgepack::detail::Json;

constexpr const char* kResizes[] = {R"({"letterbox": 8, "pad": 114)",
                                    R"({"short_side": 9, "crop": 7)", R"({"width": 5, "height": 9)"};
constexpr const char* kFilters[] = {
    "pillow-bilinear", "pillow-bicubic",       "pillow-nearest",      "cv2-linear",
    "cv2-cubic",       "cv2-area",             "cv2-nearest",         "tf-bilinear",
    "unknown",         "torchvision-bilinear", "torchvision-bicubic"};
constexpr const char* kOrders[] = {"RGB", "BGR", "GRAY"};

ImageDescription draw_description(FuzzedDataProvider& drawn) {
  const std::string resize = drawn.PickValueInArray(kResizes);
  const std::string text = R"({"resize": )" + resize + R"(, "filter": ")" +
                           drawn.PickValueInArray(kFilters) + R"(", "antialias": )" +
                           (drawn.ConsumeBool() ? "true" : "false") + R"(}, "order": ")" +
                           drawn.PickValueInArray(kOrders) +
                           R"(", "layout": "NCHW", "scale": 1, "mean": [1], "std": [2]})";
  return ImageDescription::read(Json::parse(text, "drawn"));
}

/// Mostly small, and sometimes any.
std::int64_t draw_number(FuzzedDataProvider& drawn) {
  if (drawn.ConsumeIntegral<std::uint8_t>() == 0) return drawn.ConsumeIntegral<std::int64_t>();
  return drawn.ConsumeIntegralInRange<std::int64_t>(-1, 70);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzedDataProvider drawn(data, size);
  try {
    const ImageDescription described = draw_description(drawn);
    edgepack::Frame frame;
    frame.format = static_cast<edgepack::Format>(drawn.ConsumeIntegralInRange<int>(0, 5));
    frame.width = draw_number(drawn);
    frame.height = draw_number(drawn);
    frame.rotation = drawn.ConsumeIntegralInRange<int>(-1, 4) * 90;
    frame.range = drawn.ConsumeBool() ? edgepack::Range::full : edgepack::Range::video;
    frame.matrix = drawn.ConsumeBool() ? edgepack::Matrix::bt601 : edgepack::Matrix::bt709;
    static_cast<void>(edgepack::make_frame(data, frame.width, frame.height, frame.format,
                                           draw_number(drawn)));
    std::vector<std::vector<std::uint8_t>> buffers(drawn.ConsumeIntegralInRange<std::size_t>(0, 4));
    for (auto& buffer : buffers) {
      // Of just its size, so that a byte behind the last is found.
      buffer.resize(drawn.ConsumeIntegralInRange<std::size_t>(0, 20000), 77);
      buffer.shrink_to_fit();
      frame.planes.push_back({buffer.data(), buffer.size(), draw_number(drawn), draw_number(drawn)});
    }
    const edgepack::detail::Pixels whole = edgepack::detail::make_pixels(frame);
    static_cast<void>(edgepack::detail::make_tensor(whole, described));
  } catch (const edgepack::Error&) {
  }
  return 0;
}
