// Pictures to input tensors, as `image` in the manifest's `input_descriptions` says.
//
// What comes in is upright and opaque: 8-bit RGB. The numbers are those of the Python loader.

#ifndef EDGEPACK_DETAIL_IMAGES_HPP
#define EDGEPACK_DETAIL_IMAGES_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "edgepack/detail/error.hpp"
#include "edgepack/detail/json.hpp"
#include "edgepack/detail/resizing.hpp"
#include "edgepack/detail/tensor.hpp"

#ifdef __clang__
#pragma clang fp contract(off)
#endif

namespace edgepack::detail {

/// The most pixels of a scaled picture that the model itself scales, because it scales the whole
/// before it cuts. 3 bytes each.
constexpr std::int64_t kMostPixels = std::int64_t{1} << 28;

/// The place of a scaled picture in the model's input. All values are in pixels.
struct Placement {
  std::int64_t picture_width;
  std::int64_t picture_height;
  /// Of the scaled picture.
  std::int64_t width;
  std::int64_t height;
  /// Of the scaled picture's edges in the input; negative where the picture is cut there.
  std::int64_t left;
  std::int64_t top;
  std::int64_t input_width;
  std::int64_t input_height;

  /// The columns and rows of the scaled picture that are in the input.
  Span columns() const { return show(picture_width, width, left, input_width); }
  Span rows() const { return show(picture_height, height, top, input_height); }

 private:
  static Span show(std::int64_t from, std::int64_t to, std::int64_t edge, std::int64_t input) {
    const std::int64_t begin = std::max<std::int64_t>(0, -edge);
    return {from, to, begin, std::max(begin, std::min(to, input - edge))};
  }
};

/// How a picture becomes an input, read from its description.
struct ImageDescription {
  Json resize;
  Resampling resampling;
  std::string order;
  bool is_channels_first;
  float scale;
  std::vector<float> mean;
  std::vector<float> std;

  /// Throws `Error` (broken_bundle): a value is missing or of another kind, or a size is none.
  static ImageDescription read(const Json& described) {
    const auto read_floats = [&](const char* name) {
      std::vector<float> values;
      if (const Json* found = described.find(name)) {
        for (const Json& each : found->items()) values.push_back(static_cast<float>(each.number()));
      }
      return values;
    };
    const Json& resize = described.at("resize");
    check_resize(resize);
    Resampling resampling;
    if (const Json* filter = resize.find("filter")) resampling.filter = filter->text();
    if (const Json* antialias = resize.find("antialias")) resampling.antialias = antialias->boolean();
    return {resize,
            resampling,
            described.at("order").text(),
            described.at("layout").text() == "NCHW",
            static_cast<float>(described.at("scale").number()),
            read_floats("mean"),
            read_floats("std")};
  }

 private:
  static void check_resize(const Json& resize) {
    // A frame has at most as many pixels a side; their products fit into 64 bits.
    constexpr std::int64_t longest = std::int64_t{1} << 24;
    for (const char* name : {"letterbox", "short_side", "crop", "width", "height"}) {
      const Json* side = resize.find(name);
      if (side != nullptr && (side->integer() < 1 || side->integer() > longest))
        throw make_broken(side->path() + " is not 1 to " + std::to_string(longest));
    }
    const Json* side = resize.find("letterbox");
    if (side == nullptr && resize.find("short_side") != nullptr) side = &resize.at("crop");
    const Json& wide = side == nullptr ? resize.at("width") : *side;
    const Json& high = side == nullptr ? resize.at("height") : *side;
    check_claimed(Type::float32, {1, 3, high.integer(), wide.integer()});
  }
};

/// A size times a ratio: rounded, halves to even, at least 1.
inline std::int64_t scale_side(std::int64_t side, double ratio) {
  const double scaled = std::nearbyint(static_cast<double>(side) * ratio);
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(scaled));
}

/// A half, rounded down.
inline std::int64_t halve(std::int64_t value) { return value >> 1; }

/// Returns where a picture of a size lies in the input.
///
/// `resize` is `{letterbox, pad}`, `{short_side, crop}` or `{width, height}`.
inline Placement find_placement(std::int64_t width, std::int64_t height, const Json& resize) {
  if (const Json* letterbox = resize.find("letterbox")) {
    const std::int64_t side = letterbox->integer();
    const double ratio = static_cast<double>(side) / static_cast<double>(std::max(width, height));
    const std::int64_t wide = scale_side(width, ratio), high = scale_side(height, ratio);
    return {width, height, wide, high, halve(side - wide), halve(side - high), side, side};
  }
  if (const Json* short_side = resize.find("short_side")) {
    const std::int64_t side = resize.at("crop").integer();
    const double ratio = short_side->number() / static_cast<double>(std::min(width, height));
    const std::int64_t wide = scale_side(width, ratio), high = scale_side(height, ratio);
    return {width, height, wide, high, -halve(wide - side), -halve(high - side), side, side};
  }
  const std::int64_t wide = resize.at("width").integer(), high = resize.at("height").integer();
  return {width, height, wide, high, 0, 0, wide, high};
}

/// Throws `Error` (bad_input) unless a model can scale the picture whole, as it has to.
inline void check_scaled(const Placement& place) {
  if (place.height <= kMostPixels / place.width) return;
  throw Error(Code::bad_input,
              "the picture of " + std::to_string(place.picture_width) + " x " +
                  std::to_string(place.picture_height) + " pixels would become " +
                  std::to_string(place.width) + " x " + std::to_string(place.height) +
                  " in the model before it is cut",
              "cut its ends off first");
}

/// Returns RGB as luma: rounded, by the weights of ITU-R 601-2 in 1/65536, as Pillow's Convert.c
/// does it.
inline Pixels make_gray(const Pixels& pixels) {
  Pixels gray{pixels.width, pixels.height, 1, {}};
  gray.values.resize(pixels.values.size() / 3);
  for (std::size_t k = 0; k < gray.values.size(); ++k) {
    const std::uint8_t* rgb = pixels.values.data() + 3 * k;
    const std::uint32_t luma = rgb[0] * 19595U + rgb[1] * 38470U + rgb[2] * 7471U + 0x8000U;
    gray.values[k] = static_cast<std::uint8_t>(luma >> 16);
  }
  return gray;
}

/// Returns a picture as the model takes it: float32 `(1, C, H, W)` or `(1, H, W, C)`.
inline Tensor make_tensor(const Pixels& pixels, const ImageDescription& described) {
  const Placement place = find_placement(pixels.width, pixels.height, described.resize);
  const bool is_gray = described.order == "GRAY";
  const Span across = place.columns(), down = place.rows();
  const std::vector<float> shown =
      resize_pixels(is_gray ? make_gray(pixels) : pixels, across, down, described.resampling);
  const std::int64_t channels = is_gray ? 1 : 3;
  const Json* pad = described.resize.find("pad");
  const float outside = pad == nullptr ? 0.0F : static_cast<float>(pad->number());
  const std::int64_t wide = place.input_width, high = place.input_height;
  Tensor tensor = described.is_channels_first
                      ? edgepack::make_tensor(Type::float32, {1, channels, high, wide})
                      : edgepack::make_tensor(Type::float32, {1, high, wide, channels});
  auto* values = tensor.data<float>();
  // A cut picture's first shown column is the input's first.
  const std::int64_t left = std::max<std::int64_t>(place.left, 0);
  const std::int64_t top = std::max<std::int64_t>(place.top, 0);
  for (std::int64_t y = 0; y < high; ++y) {
    for (std::int64_t x = 0; x < wide; ++x) {
      const bool is_inside =
          x >= left && x - left < across.count() && y >= top && y - top < down.count();
      for (std::int64_t c = 0; c < channels; ++c) {
        const std::int64_t from = described.order == "BGR" ? 2 - c : c;
        float value = outside;
        if (is_inside) {
          const std::int64_t index = ((y - top) * across.count() + x - left) * channels + from;
          value = shown[static_cast<std::size_t>(index)];
        }
        value *= described.scale;
        const auto number = static_cast<std::size_t>(c);
        if (!described.mean.empty()) value -= described.mean[number % described.mean.size()];
        if (!described.std.empty()) value /= described.std[number % described.std.size()];
        values[described.is_channels_first ? (c * high + y) * wide + x
                                           : (y * wide + x) * channels + c] = value;
      }
    }
  }
  return tensor;
}

}  // namespace edgepack::detail

#endif
