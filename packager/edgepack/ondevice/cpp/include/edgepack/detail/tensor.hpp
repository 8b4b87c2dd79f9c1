// Tensors: values in C order with a type and a shape, owned or only seen.

#ifndef EDGEPACK_DETAIL_TENSOR_HPP
#define EDGEPACK_DETAIL_TENSOR_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "edgepack/detail/error.hpp"

namespace edgepack {

/// The kind of a tensor's values. The numbers are those of ONNX's `TensorProto.DataType`, which
/// onnxruntime's `ONNXTensorElementDataType` repeats, and of `edgepack_type` in edgepack.h.
enum class Type {
  float32 = 1,
  uint8 = 2,
  int8 = 3,
  uint16 = 4,
  int16 = 5,
  int32 = 6,
  int64 = 7,
  boolean = 9,
  float16 = 10,
  float64 = 11,
  uint32 = 12,
  uint64 = 13,
};

/// A value of `Type::float16`: the bits of an IEEE 754 binary16.
struct Half {
  std::uint16_t bits;
};

namespace detail {

struct TypeFacts {
  Type type;
  /// As numpy spells it, and the manifest.
  const char* name;
  std::size_t size;
};

constexpr TypeFacts kTypes[] = {
    {Type::float32, "float32", 4}, {Type::uint8, "uint8", 1},   {Type::int8, "int8", 1},
    {Type::uint16, "uint16", 2},   {Type::int16, "int16", 2},   {Type::int32, "int32", 4},
    {Type::int64, "int64", 8},     {Type::boolean, "bool", 1},  {Type::float16, "float16", 2},
    {Type::float64, "float64", 8}, {Type::uint32, "uint32", 4}, {Type::uint64, "uint64", 8},
};

/// Returns the facts of a type by its number; nullptr where it is none.
inline const TypeFacts* find_type(int number) {
  for (const TypeFacts& each : kTypes) {
    if (static_cast<int>(each.type) == number) return &each;
  }
  return nullptr;
}

/// Returns the facts of a type by numpy's name; nullptr where it is none.
inline const TypeFacts* find_type(std::string_view name) {
  for (const TypeFacts& each : kTypes) {
    if (name == each.name) return &each;
  }
  return nullptr;
}

inline const TypeFacts& get_facts(Type type) {
  const TypeFacts* found = find_type(static_cast<int>(type));
  if (found == nullptr) {
    throw Error(Code::usage, "there is no type " + std::to_string(static_cast<int>(type)),
                "see edgepack::Type");
  }
  return *found;
}

/// The type of tensors that hold values of a C++ type; 0 where none does.
template <class T>
inline constexpr Type kTypeOf = Type{0};
template <>
inline constexpr Type kTypeOf<float> = Type::float32;
template <>
inline constexpr Type kTypeOf<double> = Type::float64;
template <>
inline constexpr Type kTypeOf<Half> = Type::float16;
template <>
inline constexpr Type kTypeOf<bool> = Type::boolean;
template <>
inline constexpr Type kTypeOf<std::uint8_t> = Type::uint8;
template <>
inline constexpr Type kTypeOf<std::int8_t> = Type::int8;
template <>
inline constexpr Type kTypeOf<std::uint16_t> = Type::uint16;
template <>
inline constexpr Type kTypeOf<std::int16_t> = Type::int16;
template <>
inline constexpr Type kTypeOf<std::uint32_t> = Type::uint32;
template <>
inline constexpr Type kTypeOf<std::int32_t> = Type::int32;
template <>
inline constexpr Type kTypeOf<std::uint64_t> = Type::uint64;
template <>
inline constexpr Type kTypeOf<std::int64_t> = Type::int64;

/// A shape as Python shows it: `[1, 3, 224, 224]`.
inline std::string format_shape(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t k = 0; k < shape.size(); ++k)
    text += (k == 0 ? "" : ", ") + std::to_string(shape[k]);
  return text + "]";
}

/// Returns how many values a shape has.
///
/// Throws `Error` (bad_input): a dimension is negative, or the values would not fit into memory.
inline std::size_t count_values(const std::vector<std::int64_t>& shape) {
  std::size_t count = 1;
  bool empty = false;
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max() / 16;
  for (const std::int64_t size : shape) {
    const auto positive = static_cast<std::uint64_t>(size);
    if (size < 0 || (size > 0 && positive > most / count)) {
      throw Error(Code::bad_input, "no tensor has the shape " + format_shape(shape),
                  "see the model's inputs");
    }
    empty = empty || size == 0;
    if (size > 0) count *= static_cast<std::size_t>(positive);
  }
  return empty ? 0 : count;
}

/// Returns how many bytes a tensor has.
inline std::size_t count_bytes(Type type, const std::vector<std::int64_t>& shape) {
  return count_values(shape) * get_facts(type).size;
}

[[noreturn]] inline void throw_other_type(Type type) {
  throw Error(Code::usage, "the tensor holds " + std::string(get_facts(type).name),
              "ask for values of that type");
}

/// Returns the value of a binary16, exactly. Source: IEEE 754-2019, 3.4.
inline double read_half(Half half) {
  const int exponent = half.bits >> 10 & 0x1F, fraction = half.bits & 0x3FF;
  double value =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024, exponent - 25);
  if (exponent == 31) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    value = fraction == 0 ? infinity : std::numeric_limits<double>::quiet_NaN();
  }
  return (half.bits & 0x8000) != 0 ? -value : value;
}

template <class Value>
double load_number(const std::byte* at) {
  Value value;
  std::memcpy(&value, at, sizeof value);
  return static_cast<double>(value);
}

/// One value of a tensor as a double: of 64-bit integers the nearest.
inline double load_number(const std::byte* at, Type type) {
  switch (type) {
    case Type::float32: return load_number<float>(at);
    case Type::float64: return load_number<double>(at);
    case Type::float16: {
      Half half;
      std::memcpy(&half, at, sizeof half);
      return read_half(half);
    }
    case Type::int8: return load_number<std::int8_t>(at);
    case Type::int16: return load_number<std::int16_t>(at);
    case Type::int32: return load_number<std::int32_t>(at);
    case Type::int64: return load_number<std::int64_t>(at);
    case Type::uint8: return load_number<std::uint8_t>(at);
    case Type::uint16: return load_number<std::uint16_t>(at);
    case Type::uint32: return load_number<std::uint32_t>(at);
    case Type::uint64: return load_number<std::uint64_t>(at);
    case Type::boolean: return load_number<std::uint8_t>(at);
  }
  throw_other_type(type);
}

inline bool is_float(Type type) {
  return type == Type::float32 || type == Type::float16 || type == Type::float64;
}

/// Returns the binary16 nearest to a number, of two as near the even one.
inline Half make_half(double number) {
  const unsigned sign = std::signbit(number) ? 0x8000 : 0;
  const double size = std::fabs(number);
  unsigned bits = 0x7E00;  // of NaN
  if (size >= 65520) {
    bits = 0x7C00;
  } else if (size == 0) {
    bits = 0;
  } else if (size < 65520) {
    const int exponent = std::max(std::ilogb(size), -14);
    // What rounds up to the next power of two carries into the exponent, as the bits follow each
    // other.
    const double fraction = std::nearbyint(std::ldexp(size, 10 - exponent));
    bits = static_cast<unsigned>((exponent + 14) * 1024) + static_cast<unsigned>(fraction);
  }
  return {static_cast<std::uint16_t>(sign | bits)};
}

/// The most bytes of a tensor whose size only a manifest says: 1 GiB.
constexpr std::size_t kMostClaimed = std::size_t{1} << 30;

/// Throws `Error` (broken_bundle) where a manifest says a size that no device would have memory for.
inline void check_claimed(Type type, const std::vector<std::int64_t>& shape) {
  constexpr std::int64_t most = kMostClaimed;
  const bool is_long = std::any_of(shape.begin(), shape.end(),
                                   [](std::int64_t size) { return size < 0 || size > most; });
  if (is_long || count_bytes(type, shape) > kMostClaimed)
    throw make_broken("an input of the shape " + format_shape(shape) + " is larger than 1 GiB");
}

}  // namespace detail

/// Values of a tensor that lie elsewhere, in C order; they have to stay while the view is used.
struct TensorView {
  Type type;
  std::vector<std::int64_t> shape;
  const void* data;
  /// What lies at `data`: just what type and shape need, which is checked where it is used.
  std::size_t bytes;
};

/// A tensor with its own values, in C order and this machine's byte order.
struct Tensor {
  Type type = Type::float32;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;

  TensorView view() const { return {type, shape, bytes.data(), bytes.size()}; }
  std::size_t count() const { return bytes.size() / detail::get_facts(type).size; }

  /// The values. Throws `Error` (usage) where the tensor holds others.
  template <class T>
  const T* data() const {
    if (detail::kTypeOf<T> != type) detail::throw_other_type(type);
    return reinterpret_cast<const T*>(bytes.data());
  }
  template <class T>
  T* data() {
    if (detail::kTypeOf<T> != type) detail::throw_other_type(type);
    return reinterpret_cast<T*>(bytes.data());
  }
};

using Tensors = std::map<std::string, Tensor, std::less<>>;
using TensorViews = std::map<std::string, TensorView, std::less<>>;

/// Returns a view of values in C order, such as `make_view(pixels.data(), {1, 3, 224, 224})`.
template <class T>
TensorView make_view(const T* data, std::vector<std::int64_t> shape) {
  constexpr Type type = detail::kTypeOf<T>;
  static_assert(type != Type{0}, "no tensor holds such values");
  const std::size_t bytes = detail::count_bytes(type, shape);
  return {type, std::move(shape), data, bytes};
}

/// Returns a tensor of zeros.
inline Tensor make_tensor(Type type, std::vector<std::int64_t> shape) {
  std::vector<std::byte> bytes(detail::count_bytes(type, shape));
  return {type, std::move(shape), std::move(bytes)};
}

namespace detail {

/// Returns a copy of what a view shows.
inline Tensor copy_tensor(const TensorView& view) {
  const auto* begin = static_cast<const std::byte*>(view.data);
  return {view.type, view.shape, std::vector<std::byte>(begin, begin + view.bytes)};
}

}  // namespace detail
}  // namespace edgepack

#endif
