// Resizing of pictures as the libraries do it that models are trained with.
//
// Where the library computes in fixed point, so does this, with the same rounding; where it
// computes in float32, so does this, in the same sequence: the Python, Kotlin, Swift and JavaScript
// runtimes give the same numbers, to the bit. A compiler that joins products and sums (FMA) would
// round otherwise: compile with -ffp-contract=off.
//
// Sources: Pillow 13, src/libImaging/Resample.c and Geometry.c; OpenCV 5,
// modules/imgproc/src/resize.cpp; PyTorch 2, aten/src/ATen/native/UpSample.h.

#ifndef EDGEPACK_DETAIL_RESIZING_HPP
#define EDGEPACK_DETAIL_RESIZING_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "edgepack/detail/error.hpp"

#ifdef __clang__
#pragma clang fp contract(off)
#endif

namespace edgepack::detail {

/// Bytes of a picture, `(height, width, channels)`, rows behind each other.
struct Pixels {
  std::int64_t width;
  std::int64_t height;
  std::int64_t channels;
  std::vector<std::uint8_t> values;
};

/// How an axis is scaled, and which of its new values are wanted: from `begin` on, before `end`.
struct Span {
  std::int64_t from;
  std::int64_t to;
  std::int64_t begin;
  std::int64_t end;

  std::int64_t count() const { return end - begin; }
};

/// The filter that a description names, and whether it spreads over all that becomes one.
struct Resampling {
  std::string filter = "pillow-bilinear";
  bool antialias = false;
};

/// The values of a picture that make each new value along an axis, and their weights.
template <class Weight>
struct Axis {
  /// How many values the picture has there.
  std::int64_t from;
  /// How many of them make a new one.
  std::int64_t taps;
  /// How many of the first ones are not there, as they make none.
  std::int64_t skipped = 0;
  /// For each new value the first one that makes it. What lies outside stands for the edge.
  std::vector<std::int64_t> first;
  /// Of that one and of those that follow, `taps` for each; 0 behind the last.
  std::vector<Weight> weights;

  Axis(std::int64_t of_from, std::int64_t of_taps, std::int64_t count)
      : from(of_from),
        taps(of_taps),
        first(static_cast<std::size_t>(count)),
        weights(static_cast<std::size_t>(count * of_taps)) {}

  std::int64_t count() const { return static_cast<std::int64_t>(first.size()); }
  std::int64_t place(std::int64_t index, std::int64_t tap) const {
    return std::clamp<std::int64_t>(first[static_cast<std::size_t>(index)] + tap, 0, from - 1) -
           skipped;
  }
  Weight& weight(std::int64_t index, std::int64_t tap) {
    return weights[static_cast<std::size_t>(index * taps + tap)];
  }
  Weight weight(std::int64_t index, std::int64_t tap) const {
    return weights[static_cast<std::size_t>(index * taps + tap)];
  }
};

/// Adds a product; of integers as 32 bits do it, which go around at their ends.
template <class Value, class Weight>
Weight add_product(Weight sum, Value value, Weight weight) {
  if constexpr (std::is_floating_point_v<Weight>) {
    return sum + static_cast<Weight>(value) * weight;
  } else {
    const auto product = static_cast<std::uint32_t>(value) * static_cast<std::uint32_t>(weight);
    return static_cast<Weight>(static_cast<std::uint32_t>(sum) + product);
  }
}

/// Returns which values along an axis make any new one.
template <class Weight>
std::vector<bool> find_needed(const Axis<Weight>& axis) {
  std::vector<bool> needed(static_cast<std::size_t>(axis.from));
  for (std::int64_t index = 0; index < axis.count(); ++index) {
    for (std::int64_t tap = 0; tap < axis.taps; ++tap)
      needed[static_cast<std::size_t>(axis.place(index, tap))] = true;
  }
  return needed;
}

/// Returns the sums along the rows, `(rows, count, channels)`, of rows that `down` needs; they are
/// added one after the other, from `start` on. The rows before the first one that is needed, and
/// behind the last one, are left out, and `down` skips them: of a long picture that is cut, the
/// sums may be larger than memory.
template <class Value, class Weight, class Other>
std::vector<Weight> sum_across(const std::vector<Value>& values, std::int64_t channels,
                               const Axis<Weight>& axis, Axis<Other>& down, Weight start) {
  const std::vector<bool> needed = find_needed(down);
  const auto first = std::find(needed.begin(), needed.end(), true);
  const auto last = std::find(needed.rbegin(), needed.rend(), true).base();
  const std::int64_t begin = first - needed.begin(), end = std::max(last, first) - needed.begin();
  std::vector<Weight> sums(static_cast<std::size_t>((end - begin) * axis.count() * channels), start);
  down.skipped = begin;
  for (std::int64_t y = begin; y < end; ++y) {
    if (!needed[static_cast<std::size_t>(y)]) continue;
    const Value* row = values.data() + y * axis.from * channels;
    Weight* sum = sums.data() + (y - begin) * axis.count() * channels;
    for (std::int64_t x = 0; x < axis.count(); ++x, sum += channels) {
      for (std::int64_t tap = 0; tap < axis.taps; ++tap) {
        const Value* value = row + axis.place(x, tap) * channels;
        const Weight weight = axis.weight(x, tap);
        for (std::int64_t c = 0; c < channels; ++c)
          sum[c] = add_product(sum[c], value[c], weight);
      }
    }
  }
  return sums;
}

/// Returns the sums along the columns, `(count, length)`, of rows of `length` values, of which
/// those from `begin` on and before `end` are added up.
template <class Value, class Weight>
std::vector<Weight> sum_down(const std::vector<Value>& values, std::int64_t length,
                             const Axis<Weight>& axis, Weight start, std::int64_t begin,
                             std::int64_t end) {
  std::vector<Weight> sums(static_cast<std::size_t>(axis.count() * length), start);
  for (std::int64_t y = 0; y < axis.count(); ++y) {
    Weight* sum = sums.data() + y * length;
    for (std::int64_t tap = 0; tap < axis.taps; ++tap) {
      const Value* row = values.data() + axis.place(y, tap) * length;
      const Weight weight = axis.weight(y, tap);
      for (std::int64_t k = begin; k < end; ++k) sum[k] = add_product(sum[k], row[k], weight);
    }
  }
  return sums;
}

template <class Value, class Weight>
std::vector<Weight> sum_down(const std::vector<Value>& values, std::int64_t length,
                             const Axis<Weight>& axis, Weight start = 0) {
  return sum_down(values, length, axis, start, 0, length);
}

/// Returns weighted sums along the rows, and then along the columns, of these.
template <class Weight>
std::vector<Weight> sum_both(const Pixels& pixels, const Axis<Weight>& across,
                             Axis<Weight> down) {
  const auto rows = sum_across(pixels.values, pixels.channels, across, down, Weight{});
  return sum_down(rows, across.count() * pixels.channels, down);
}

inline float round_level(float value) {
  // Of two equal numbers `max` takes the first one: of 0 and -0, which is another float, 0.
  return std::min(255.0F, std::max(0.0F, std::nearbyint(value)));
}

inline float clamp_level(std::int64_t value) {
  return static_cast<float>(std::clamp<std::int64_t>(value, 0, 255));
}

template <class Value, class Finish>
std::vector<float> finish(const std::vector<Value>& values, Finish each) {
  std::vector<float> finished(values.size());
  std::transform(values.begin(), values.end(), finished.begin(), each);
  return finished;
}

// --- Kernels

template <class Real>
Real compute_bilinear(Real distance) {
  return distance < Real(1) ? Real(1) - distance : Real(0);
}

/// Keys' kernel with a = -0.5.
template <class Real>
Real compute_bicubic(Real distance) {
  if (distance < Real(1)) {
    return (Real(1.5) * distance - Real(2.5)) * distance * distance + Real(1);
  }
  if (distance >= Real(2)) return Real(0);
  return (((distance - Real(5)) * distance + Real(8)) * distance - Real(4)) * Real(-0.5);
}

/// Keys' kernel with a = -0.75, up to one value away.
inline float weigh_near(float distance) {
  return (1.25F * distance - 2.25F) * distance * distance + 1.0F;
}

/// The same, from one value on.
inline float weigh_far(float distance) {
  return ((-0.75F * distance + 3.75F) * distance - 6.0F) * distance + 3.0F;
}

template <class Real>
struct Reach {
  Real values;
  Real narrowing;
};

/// Returns shares of all values that a kernel reaches, whose sum is 1, for each new value's centre.
template <class Real, class Centre>
Axis<Real> weigh(const Span& span, Centre find_centre, Reach<Real> reach, Real (*kernel)(Real)) {
  const auto taps = static_cast<std::int64_t>(std::ceil(reach.values)) * 2 + 1;
  Axis<Real> axis(span.from, taps, span.count());
  for (std::int64_t index = 0; index < span.count(); ++index) {
    const Real centre = find_centre(span.begin + index);
    const auto begin = static_cast<std::int64_t>(centre - reach.values + Real(0.5));
    const auto end = static_cast<std::int64_t>(centre + reach.values + Real(0.5));
    const std::int64_t first = std::max<std::int64_t>(begin, 0);
    const std::int64_t last = std::min(end, span.from);
    axis.first[static_cast<std::size_t>(index)] = first;
    Real total = 0;
    for (std::int64_t tap = 0; tap < taps; ++tap) {
      const Real place = static_cast<Real>(first + tap);
      const Real distance = std::abs((place - centre + Real(0.5)) * reach.narrowing);
      axis.weight(index, tap) = first + tap < last ? kernel(distance) : Real(0);
      total += axis.weight(index, tap);
    }
    for (std::int64_t tap = 0; tap < taps; ++tap) axis.weight(index, tap) /= total;
  }
  return axis;
}

// --- Pillow

constexpr int kPillowBits = 22;  // Of a weight's fixed point: PRECISION_BITS, 32 - 8 - 2.

inline Axis<std::int32_t> make_pillow_axis(const Span& span, double (*kernel)(double),
                                           double reach) {
  if (span.from == span.to) {
    Axis<std::int32_t> same(span.from, 1, span.count());
    for (std::int64_t index = 0; index < span.count(); ++index) {
      same.first[static_cast<std::size_t>(index)] = span.begin + index;
      same.weight(index, 0) = 1 << kPillowBits;
    }
    return same;
  }
  const double scale = static_cast<double>(span.from) / static_cast<double>(span.to);
  // Scaling up, the filter reaches as far as its kernel; scaling down, over all that becomes one:
  // that is the antialiasing.
  const double stretched = std::max(scale, 1.0);
  const auto find_centre = [&](std::int64_t k) { return (static_cast<double>(k) + 0.5) * scale; };
  const auto shares = weigh<double>(span, find_centre, {reach * stretched, 1.0 / stretched}, kernel);
  Axis<std::int32_t> axis(span.from, shares.taps, span.count());
  axis.first = shares.first;
  for (std::size_t k = 0; k < shares.weights.size(); ++k) {
    const double exact = shares.weights[k] * (1 << kPillowBits);
    axis.weights[k] = static_cast<std::int32_t>(exact + (exact < 0 ? -0.5 : 0.5));
  }
  return axis;
}

inline std::vector<std::uint8_t> finish_pillow(const std::vector<std::int32_t>& sums) {
  std::vector<std::uint8_t> levels(sums.size());
  std::transform(sums.begin(), sums.end(), levels.begin(), [](std::int32_t sum) {
    return static_cast<std::uint8_t>(std::clamp(sum >> kPillowBits, 0, 255));
  });
  return levels;
}

/// Two passes, each of which rounds to 8 bits. The columns come first if the height loses more than
/// twice what the width loses (observed in Pillow 13).
inline std::vector<float> resize_as_pillow(const Pixels& pixels, const Span& across,
                                           const Span& down, double (*kernel)(double),
                                           double reach) {
  const auto wide = make_pillow_axis(across, kernel, reach);
  auto high = make_pillow_axis(down, kernel, reach);
  constexpr std::int32_t half = 1 << (kPillowBits - 1);
  const std::int64_t channels = pixels.channels;
  const std::int64_t lost_width = across.from - across.to, lost_height = down.from - down.to;
  std::vector<std::uint8_t> levels;
  if (lost_height > 2 * std::max<std::int64_t>(lost_width, 0)) {
    std::int64_t begin = across.from, end = 0;
    for (std::int64_t index = 0; index < wide.count(); ++index) {
      begin = std::min(begin, wide.place(index, 0));
      end = std::max(end, wide.place(index, wide.taps - 1) + 1);
    }
    levels = finish_pillow(sum_down(pixels.values, across.from * channels, high, half,
                                    begin * channels, end * channels));
    const Span same{high.count(), high.count(), 0, high.count()};
    auto all = make_pillow_axis(same, kernel, reach);
    levels = finish_pillow(sum_across(levels, channels, wide, all, half));
  } else {
    levels = finish_pillow(sum_across(pixels.values, channels, wide, high, half));
    levels = finish_pillow(sum_down(levels, wide.count() * channels, high, half));
  }
  return {levels.begin(), levels.end()};
}

/// Returns the pixels at these places of both axes.
inline std::vector<float> pick(const Pixels& pixels, const std::vector<std::int64_t>& columns,
                               const std::vector<std::int64_t>& rows) {
  std::vector<float> picked;
  picked.reserve(columns.size() * rows.size() * static_cast<std::size_t>(pixels.channels));
  for (const std::int64_t y : rows) {
    for (const std::int64_t x : columns) {
      const auto* pixel = pixels.values.data() + (y * pixels.width + x) * pixels.channels;
      picked.insert(picked.end(), pixel, pixel + pixels.channels);
    }
  }
  return picked;
}

/// The pixel in which each new one's centre lies; ImagingScaleAffine adds up steps.
inline std::vector<std::int64_t> pick_as_pillow(const Span& span) {
  const double step = static_cast<double>(span.from) / static_cast<double>(span.to);
  double place = step * 0.5;
  std::vector<std::int64_t> picked;
  for (std::int64_t index = 0; index < span.end; ++index) {
    if (index >= span.begin) picked.push_back(static_cast<std::int64_t>(place));
    place += step;
  }
  return picked;
}

// --- OpenCV

constexpr int kLinearBits = 11;  // Of a weight's fixed point: INTER_RESIZE_COEF_BITS.
constexpr std::int64_t kCubicLanes = 8;  // INTER_CUBIC joins so many values at once: v_int16.
constexpr double kLeastShare = 1e-3;  // The smallest part of a pixel that counts in areas.

/// A value's place: the one before it, and which part of the way to the next one it lies.
struct Place {
  std::int64_t first;
  float part;
};

/// The scale, and what it is computed from, as OpenCV divides.
inline std::pair<double, double> find_cv2_scale(const Span& span) {
  const double inverse = static_cast<double>(span.to) / static_cast<double>(span.from);
  return {1.0 / inverse, inverse};
}

inline Place place_linear(const Span& span, std::int64_t index) {
  const double scale = find_cv2_scale(span).first;
  const auto exact = static_cast<float>((static_cast<double>(index) + 0.5) * scale - 0.5);
  const float first = std::floor(exact);
  return {static_cast<std::int64_t>(first), exact - first};
}

/// The same for INTER_AREA where a side grows.
inline Place place_area(const Span& span, std::int64_t index) {
  const auto [scale, inverse] = find_cv2_scale(span);
  const auto first = static_cast<std::int64_t>(std::floor(static_cast<double>(index) * scale));
  const auto part = static_cast<float>(static_cast<double>(index + 1) -
                                       static_cast<double>(first + 1) * inverse);
  return {first, part <= 0 ? 0.0F : part - std::floor(part)};
}

inline std::int32_t make_fixed(float weight) {
  return static_cast<std::int32_t>(std::nearbyint(weight * (1 << kLinearBits)));
}

/// Two weights for each new value. Only within a row are places outside moved to its edge.
inline Axis<std::int32_t> make_cv2_axis(const Span& span, Place (*find_place)(const Span&, std::int64_t),
                                        bool is_row) {
  Axis<std::int32_t> axis(span.from, 2, span.count());
  for (std::int64_t index = 0; index < span.count(); ++index) {
    Place place = find_place(span, span.begin + index);
    if (is_row) {
      if (place.first < 0 || place.first >= span.from - 1) place.part = 0;
      place.first = std::clamp<std::int64_t>(place.first, 0, span.from - 1);
    }
    axis.first[static_cast<std::size_t>(index)] = place.first;
    axis.weight(index, 0) = make_fixed(1.0F - place.part);
    axis.weight(index, 1) = make_fixed(place.part);
  }
  return axis;
}

/// Pixels between two of each axis, in OpenCV's fixed point.
inline std::vector<float> interpolate(const Pixels& pixels, const Span& across, const Span& down,
                                      Place (*find_place)(const Span&, std::int64_t)) {
  const auto wide = make_cv2_axis(across, find_place, true);
  auto high = make_cv2_axis(down, find_place, false);
  const auto rows = sum_across(pixels.values, pixels.channels, wide, high, 0);
  const std::int64_t length = wide.count() * pixels.channels;
  std::vector<float> levels(static_cast<std::size_t>(high.count() * length));
  for (std::int64_t y = 0; y < high.count(); ++y) {
    const std::int32_t* above = rows.data() + high.place(y, 0) * length;
    const std::int32_t* below = rows.data() + high.place(y, 1) * length;
    for (std::int64_t k = 0; k < length; ++k) {
      const std::int32_t upper = ((above[k] >> 4) * high.weight(y, 0)) >> 16;
      const std::int32_t lower = ((below[k] >> 4) * high.weight(y, 1)) >> 16;
      levels[static_cast<std::size_t>(y * length + k)] = clamp_level((upper + lower + 2) >> 2);
    }
  }
  return levels;
}

inline Axis<std::int32_t> make_cv2_cubic_axis(const Span& span) {
  Axis<std::int32_t> axis(span.from, 4, span.count());
  for (std::int64_t index = 0; index < span.count(); ++index) {
    const Place place = place_linear(span, span.begin + index);
    const float before = weigh_far(place.part + 1.0F), own = weigh_near(place.part);
    const float next = weigh_near(1.0F - place.part);
    axis.first[static_cast<std::size_t>(index)] = place.first - 1;
    const float shares[] = {before, own, next, 1.0F - before - own - next};
    for (std::int64_t tap = 0; tap < 4; ++tap) axis.weight(index, tap) = make_fixed(shares[tap]);
  }
  return axis;
}

/// INTER_CUBIC: rows are joined in float32, from the last on, and where less than eight values are
/// left at a row's end in whole numbers. Source: VResizeCubicVec_32s8u and VResizeCubic.
inline std::vector<float> resize_as_cv2_cubic(const Pixels& pixels, const Span& across,
                                              const Span& down) {
  const auto wide = make_cv2_cubic_axis(across);
  auto high = make_cv2_cubic_axis(down);
  const auto rows = sum_across(pixels.values, pixels.channels, wide, high, 0);
  const std::int64_t length = wide.count() * pixels.channels;
  constexpr std::int32_t half = 1 << (2 * kLinearBits - 1);
  std::vector<float> levels = finish(sum_down(rows, length, high, half), [](std::int32_t sum) {
    return clamp_level(sum >> (2 * kLinearBits));
  });
  const std::int64_t at_once = across.to * pixels.channels / kCubicLanes * kCubicLanes;
  const std::int64_t end = std::clamp<std::int64_t>(at_once - across.begin * pixels.channels, 0, length);
  constexpr float one = 1 << (2 * kLinearBits);
  for (std::int64_t y = 0; y < high.count(); ++y) {
    for (std::int64_t k = 0; k < end; ++k) {
      float exact = 0;
      for (std::int64_t tap = 3; tap >= 0; --tap) {
        const auto value = static_cast<float>(rows[static_cast<std::size_t>(high.place(y, tap) * length + k)]);
        exact = value * (static_cast<float>(high.weight(y, tap)) / one) + exact;
      }
      levels[static_cast<std::size_t>(y * length + k)] = round_level(exact);
    }
  }
  return levels;
}

inline Axis<std::int32_t> make_block_axis(const Span& span, std::int64_t block) {
  Axis<std::int32_t> axis(span.from, block, span.count());
  for (std::int64_t index = 0; index < span.count(); ++index)
    axis.first[static_cast<std::size_t>(index)] = (span.begin + index) * block;
  std::fill(axis.weights.begin(), axis.weights.end(), 1);
  return axis;
}

/// Which part of each pixel lies in each new one, of which pixels are parts. Source:
/// computeResizeAreaTab.
inline Axis<float> make_area_axis(const Span& span) {
  const double scale = find_cv2_scale(span).first, size = static_cast<double>(span.from);
  Axis<float> axis(span.from, static_cast<std::int64_t>(std::ceil(scale)) + 2, span.count());
  for (std::int64_t index = 0; index < span.count(); ++index) {
    const double begin = static_cast<double>(span.begin + index) * scale, end = begin + scale;
    const double cell = std::min(scale, size - begin);
    const auto last = std::min(static_cast<std::int64_t>(std::floor(end)), span.from - 1);
    const auto inner = std::min(static_cast<std::int64_t>(std::ceil(begin)), last);
    const std::int64_t first = inner - 1;
    const double before = static_cast<double>(inner) - begin;
    const double after = end - static_cast<double>(last);
    axis.first[static_cast<std::size_t>(index)] = first;
    for (std::int64_t tap = 1; first + tap < last; ++tap)
      axis.weight(index, tap) = static_cast<float>(1.0 / cell);
    axis.weight(index, 0) = before > kLeastShare ? static_cast<float>(before / cell) : 0.0F;
    const double rest = std::min(std::min(after, 1.0), cell) / cell;
    axis.weight(index, last - first) = after > kLeastShare ? static_cast<float>(rest) : 0.0F;
  }
  return axis;
}

/// INTER_AREA: the mean of what becomes one, where no side grows.
inline std::vector<float> resize_as_cv2_area(const Pixels& pixels, const Span& across,
                                             const Span& down) {
  const double scales[] = {find_cv2_scale(across).first, find_cv2_scale(down).first};
  if (std::min(scales[0], scales[1]) < 1) return interpolate(pixels, across, down, place_area);
  const double wide = std::nearbyint(scales[0]), high = std::nearbyint(scales[1]);
  const double apart = std::max(std::abs(scales[0] - wide), std::abs(scales[1] - high));
  if (apart >= std::numeric_limits<double>::epsilon())
    return finish(sum_both(pixels, make_area_axis(across), make_area_axis(down)), round_level);
  const auto sums = sum_both(pixels, make_block_axis(across, static_cast<std::int64_t>(wide)),
                             make_block_axis(down, static_cast<std::int64_t>(high)));
  if (wide == 2 && high == 2)
    return finish(sums, [](std::int32_t sum) { return static_cast<float>((sum + 2) >> 2); });
  const float share = 1.0F / static_cast<float>(wide * high);
  return finish(sums, [=](std::int32_t sum) { return round_level(static_cast<float>(sum) * share); });
}

/// INTER_NEAREST: the pixel at each new one's corner.
inline std::vector<std::int64_t> pick_as_cv2(const Span& span) {
  const double scale = find_cv2_scale(span).first;
  std::vector<std::int64_t> picked;
  for (std::int64_t index = span.begin; index < span.end; ++index) {
    const auto exact = static_cast<std::int64_t>(std::floor(static_cast<double>(index) * scale));
    picked.push_back(std::min(exact, span.from - 1));
  }
  return picked;
}

// --- Tensors of PyTorch and TensorFlow, in float32

inline Axis<float> make_spread_axis(const Span& span, float scale, float (*kernel)(float),
                                    float reach) {
  const float stretched = std::max(scale, 1.0F);
  const auto find_centre = [=](std::int64_t k) { return (static_cast<float>(k) + 0.5F) * scale; };
  return weigh<float>(span, find_centre, {reach * stretched, 1.0F / stretched}, kernel);
}

/// How a library of tensors finds the weights along an axis.
struct TensorFilter {
  bool is_bicubic;
  bool is_tensorflow;
  bool antialias;

  Axis<float> make_axis(const Span& span) const {
    const auto from = static_cast<float>(span.from), to = static_cast<float>(span.to);
    const float scale = from / to;
    if (antialias) {
      // TensorFlow divides twice.
      const float stretch = is_tensorflow ? 1.0F / (to / from) : scale;
      return is_bicubic ? make_spread_axis(span, stretch, compute_bicubic<float>, 2.0F)
                        : make_spread_axis(span, stretch, compute_bilinear<float>, 1.0F);
    }
    Axis<float> axis(span.from, is_bicubic ? 4 : 2, span.count());
    for (std::int64_t index = 0; index < span.count(); ++index)
      fill(axis, index, find_place(span.begin + index, scale));
    return axis;
  }

 private:
  /// A new value's centre, counted from the first one's. PyTorch's kernels on x86-64 round it to
  /// float32 once (tried with 2.14.1), TensorFlow's twice.
  float find_place(std::int64_t index, float scale) const {
    if (is_tensorflow) return (static_cast<float>(index) + 0.5F) * scale - 0.5F;
    const double exact = (static_cast<double>(index) + 0.5) * static_cast<double>(scale) - 0.5;
    return static_cast<float>(exact);
  }

  void fill(Axis<float>& axis, std::int64_t index, float place) const {
    const float exact = is_bicubic ? place : std::max(place, 0.0F);
    const float before = std::floor(exact), part = exact - before, rest = 1.0F - part;
    const auto first = static_cast<std::int64_t>(before);
    axis.first[static_cast<std::size_t>(index)] = is_bicubic ? first - 1 : first;
    if (!is_bicubic) {
      axis.weight(index, 0) = rest;
      axis.weight(index, 1) = part;
      return;
    }
    const float weights[] = {weigh_far(part + 1.0F), weigh_near(part), weigh_near(rest),
                             weigh_far(rest + 1.0F)};
    for (std::int64_t tap = 0; tap < 4; ++tap) axis.weight(index, tap) = weights[tap];
  }
};

// --- All of them

/// Returns the wanted part of a scaled picture, `(rows, columns, channels)`.
///
/// Values are whole but for `torchvision-...` and `tf-...`: those are not rounded, and with a
/// bicubic filter some are below 0 or above 255.
///
/// Throws `Error` (broken_bundle): there is no such filter.
inline std::vector<float> resize_pixels(const Pixels& pixels, const Span& across, const Span& down,
                                        const Resampling& resampling) {
  const std::string& filter = resampling.filter;
  if (filter == "pillow-bilinear")
    return resize_as_pillow(pixels, across, down, compute_bilinear<double>, 1.0);
  if (filter == "pillow-bicubic")
    return resize_as_pillow(pixels, across, down, compute_bicubic<double>, 2.0);
  if (filter == "pillow-nearest")
    return pick(pixels, pick_as_pillow(across), pick_as_pillow(down));
  if (filter == "cv2-linear") return interpolate(pixels, across, down, place_linear);
  if (filter == "cv2-cubic") return resize_as_cv2_cubic(pixels, across, down);
  if (filter == "cv2-area") return resize_as_cv2_area(pixels, across, down);
  if (filter == "cv2-nearest") return pick(pixels, pick_as_cv2(across), pick_as_cv2(down));
  const bool is_torch = filter == "torchvision-bilinear" || filter == "torchvision-bicubic";
  if (!is_torch && filter != "tf-bilinear") throw make_broken("there is no filter " + filter);
  const TensorFilter tensors{filter == "torchvision-bicubic", !is_torch, resampling.antialias};
  return sum_both(pixels, tensors.make_axis(across), tensors.make_axis(down));
}

}  // namespace edgepack::detail

#endif
