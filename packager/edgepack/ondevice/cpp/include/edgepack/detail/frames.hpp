// Frames of cameras and buffers of programs to pictures: upright 8-bit RGB.
//
// Colours of YUV are computed in integers, with the chroma sample that is nearest, so that all
// runtimes give the same pixels to the bit.

#ifndef EDGEPACK_DETAIL_FRAMES_HPP
#define EDGEPACK_DETAIL_FRAMES_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "edgepack/detail/error.hpp"
#include "edgepack/detail/resizing.hpp"

namespace edgepack {

/// How the bytes of a frame lie: three planes, Y, and U and V with half as many columns and rows,
/// rounded up (I420, or NV12 and NV21, whose U and V lie in one buffer); or one plane of 3, 4 or 1
/// bytes for each pixel. Transparent pixels, not premultiplied, are laid over white.
enum class Format { yuv420, rgb, bgr, rgba, bgra, gray };

/// The colours that Y, U and V stand for. Source: ITU-R BT.601-7 and BT.709-6.
enum class Matrix { bt601, bt709 };

/// Of Y: 0 to 255, or 16 to 235.
enum class Range { full, video };

/// The samples of one plane of a frame.
struct Plane {
  /// From the first sample on. The bytes may end right behind the last sample.
  const std::uint8_t* data = nullptr;
  std::size_t bytes = 0;
  /// From one row's first byte to the next row's, in bytes.
  std::int64_t row_stride = 0;
  /// From one sample's first byte to the next one's in its row, in bytes.
  std::int64_t pixel_stride = 0;
};

/// A picture as a camera or a decoder gives it; its bytes have to stay while it is used.
struct Frame {
  Format format = Format::rgb;
  /// Of the frame as it lies in memory, in pixels.
  std::int64_t width = 0;
  std::int64_t height = 0;
  std::vector<Plane> planes;
  /// By how many degrees the frame has to be turned clockwise to be upright: 0, 90, 180 or 270.
  int rotation = 0;
  Matrix matrix = Matrix::bt601;
  Range range = Range::full;
};

namespace detail {

/// The most pixels a side of a frame, and the most bytes of a plane: products fit into 64 bits.
constexpr std::int64_t kLongestSide = std::int64_t{1} << 24, kMostInPlane = std::int64_t{1} << 40;

}  // namespace detail

/// Returns a frame of interleaved 8-bit pixels, upright. `row_stride` 0: rows lie behind each
/// other. What no frame can be is refused where it is used.
inline Frame make_frame(const std::uint8_t* data, std::int64_t width, std::int64_t height,
                        Format format = Format::rgb, std::int64_t row_stride = 0) {
  std::int64_t count = format == Format::gray ? 1 : 3;
  if (format == Format::rgba || format == Format::bgra) count = 4;
  const auto is_side = [](std::int64_t side) { return side > 0 && side <= detail::kLongestSide; };
  const bool is_picture = is_side(width) && is_side(height);
  if (row_stride == 0 && is_picture) row_stride = width * count;
  const bool is_some =
      is_picture && row_stride >= width * count && row_stride <= detail::kMostInPlane / height;
  const std::int64_t bytes = is_some ? (height - 1) * row_stride + width * count : 0;
  return {format, width, height, {{data, static_cast<std::size_t>(bytes), row_stride, count}}};
}

namespace detail {

inline Error make_frame_error(const std::string& what) {
  return Error(Code::bad_input, what, "describe the frame as it lies in memory");
}

/// Samples of one byte or several, of a frame's own memory.
struct Samples {
  const Plane* plane;
  std::int64_t width;
  std::int64_t height;

  const std::uint8_t* at(std::int64_t x, std::int64_t y) const {
    return plane->data + y * plane->row_stride + x * plane->pixel_stride;
  }
};

constexpr const char* kFormats[] = {"yuv420", "rgb", "bgr", "rgba", "bgra", "gray"};

/// Returns a plane whose `count` bytes for each sample are all there.
inline Samples view_samples(const Frame& frame, std::size_t number, std::int64_t width,
                            std::int64_t height, std::int64_t count) {
  const Plane& plane = frame.planes[number];
  const std::string which = "plane " + std::to_string(number) + " of the frame (" +
                            kFormats[static_cast<int>(frame.format)] + ", " +
                            std::to_string(frame.width) + " x " + std::to_string(frame.height) +
                            ")";
  if (plane.pixel_stride < count) {
    throw make_frame_error(which + " has a pixel stride of " + std::to_string(plane.pixel_stride) +
                           ", " + std::to_string(count) + " are needed");
  }
  if (plane.pixel_stride > kMostInPlane / width || plane.row_stride > kMostInPlane)
    throw make_frame_error(which + " has strides beyond all memory");
  const std::int64_t row = (width - 1) * plane.pixel_stride + count;
  if (plane.row_stride < row) {
    throw make_frame_error(which + " has a row stride of " + std::to_string(plane.row_stride) +
                           ", a row has " + std::to_string(row) + " bytes");
  }
  if (plane.data == nullptr) throw make_frame_error(which + " has no bytes");
  if (height - 1 > (kMostInPlane - row) / plane.row_stride)
    throw make_frame_error(which + " has strides beyond all memory");
  const std::int64_t needed = (height - 1) * plane.row_stride + row;
  if (plane.bytes < static_cast<std::size_t>(needed)) {
    throw make_frame_error(which + " has " + std::to_string(plane.bytes) + " bytes, " +
                           std::to_string(needed) + " are needed");
  }
  return {&plane, width, height};
}

inline void check_frame(const Frame& frame) {
  if (frame.width < 1 || frame.height < 1) {
    throw make_frame_error("the frame is " + std::to_string(frame.width) + " x " +
                           std::to_string(frame.height) + " pixels, at least 1 x 1 is needed");
  }
  if (frame.width > kLongestSide || frame.height > kLongestSide) {
    throw make_frame_error("the frame is " + std::to_string(frame.width) + " x " +
                           std::to_string(frame.height) + " pixels, at most " +
                           std::to_string(kLongestSide) + " a side are possible");
  }
  const std::size_t planes = frame.format == Format::yuv420 ? 3 : 1;
  if (frame.planes.size() != planes) {
    throw make_frame_error("the frame has " + std::to_string(frame.planes.size()) + " planes, " +
                           kFormats[static_cast<int>(frame.format)] + " has " +
                           std::to_string(planes));
  }
  if (frame.rotation != 0 && frame.rotation != 90 && frame.rotation != 180 && frame.rotation != 270)
    throw make_frame_error("the frame's rotation is " + std::to_string(frame.rotation) +
                           ", expected 0, 90, 180 or 270");
}

/// Calls `fill(out, x, y)` with each upright pixel of a frame and where it lies in memory.
template <class Fill>
Pixels turn(std::int64_t width, std::int64_t height, std::int64_t channels, int rotation,
            Fill fill) {
  const bool is_turned = rotation == 90 || rotation == 270;
  Pixels upright{is_turned ? height : width, is_turned ? width : height, channels, {}};
  upright.values.resize(static_cast<std::size_t>(width * height * channels));
  std::uint8_t* out = upright.values.data();
  for (std::int64_t y = 0; y < upright.height; ++y) {
    for (std::int64_t x = 0; x < upright.width; ++x, out += channels) {
      if (rotation == 0) fill(out, x, y);
      if (rotation == 90) fill(out, y, height - 1 - x);
      if (rotation == 180) fill(out, width - 1 - x, height - 1 - y);
      if (rotation == 270) fill(out, width - 1 - y, x);
    }
  }
  return upright;
}

/// Weights in 1/65536 and the Y of black. Red and blue are 0.299 and 0.114, or 0.2126 and 0.0722, of
/// the luma; in video range Y has 219 steps, U and V have 224. Source: ITU-R BT.601-7 and BT.709-6.
struct YuvWeights {
  std::int32_t luma;
  std::int32_t black;
  std::int32_t v_in_red;
  std::int32_t u_in_green;
  std::int32_t v_in_green;
  std::int32_t u_in_blue;
};

inline YuvWeights find_weights(const Frame& frame) {
  if (frame.matrix == Matrix::bt601) {
    if (frame.range == Range::full) return {65536, 0, 91881, 22553, 46802, 116130};
    return {76309, 16, 104597, 25675, 53279, 132201};
  }
  if (frame.range == Range::full) return {65536, 0, 103206, 12276, 30679, 121609};
  return {76309, 16, 117489, 13975, 34925, 138438};
}

inline void write_rgb(std::uint8_t* out, const YuvWeights& weights, int y, int u, int v) {
  const std::int32_t light = (y - weights.black) * weights.luma + 32768;
  const std::int32_t of_u = u - 128, of_v = v - 128;
  const std::int32_t colours[] = {of_v * weights.v_in_red,
                                  -of_u * weights.u_in_green - of_v * weights.v_in_green,
                                  of_u * weights.u_in_blue};
  for (std::size_t c = 0; c < 3; ++c)
    out[c] = static_cast<std::uint8_t>(std::clamp((light + colours[c]) >> 16, 0, 255));
}

/// Returns a frame as an upright picture.
///
/// Throws `Error` (bad_input): a rotation that there is none of, a size below 1, another number of
/// planes, strides or a buffer too short.
inline Pixels make_pixels(const Frame& frame) {
  check_frame(frame);
  if (frame.format == Format::yuv420) {
    const std::int64_t wide = (frame.width + 1) / 2, high = (frame.height + 1) / 2;
    const std::vector<Samples> planes = {view_samples(frame, 0, frame.width, frame.height, 1),
                                         view_samples(frame, 1, wide, high, 1),
                                         view_samples(frame, 2, wide, high, 1)};
    const YuvWeights weights = find_weights(frame);
    return turn(frame.width, frame.height, 3, frame.rotation,
                [&](std::uint8_t* out, std::int64_t x, std::int64_t y) {
                  write_rgb(out, weights, *planes[0].at(x, y), *planes[1].at(x / 2, y / 2),
                            *planes[2].at(x / 2, y / 2));
                });
  }
  const Format format = frame.format;
  const bool has_opacity = format == Format::rgba || format == Format::bgra;
  const bool is_gray = format == Format::gray;
  const bool is_turned_round = format == Format::bgr || format == Format::bgra;
  const std::int64_t count = is_gray ? 1 : has_opacity ? 4 : 3;
  const Samples samples = view_samples(frame, 0, frame.width, frame.height, count);
  const auto copy = [&](std::uint8_t* out, std::int64_t x, std::int64_t y) {
    const std::uint8_t* pixel = samples.at(x, y);
    const std::uint32_t opacity = has_opacity ? pixel[3] : 255;
    for (std::size_t c = 0; c < 3; ++c) {
      const std::uint32_t value = pixel[is_gray ? 0 : is_turned_round ? 2 - c : c];
      out[c] = static_cast<std::uint8_t>((value * opacity + 255 * (255 - opacity) + 127) / 255);
    }
  };
  return turn(frame.width, frame.height, 3, frame.rotation, copy);
}

}  // namespace detail
}  // namespace edgepack

#endif
