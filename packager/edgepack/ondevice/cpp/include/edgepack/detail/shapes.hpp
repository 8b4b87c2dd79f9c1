// Sizes of inputs: checking, masks, padding up to a model with static shapes, and cutting back.

#ifndef EDGEPACK_DETAIL_SHAPES_HPP
#define EDGEPACK_DETAIL_SHAPES_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "edgepack/detail/error.hpp"
#include "edgepack/detail/json.hpp"
#include "edgepack/detail/manifest.hpp"
#include "edgepack/detail/tensor.hpp"
#include "edgepack/detail/text.hpp"

namespace edgepack::detail {

inline Error make_bad_input(const std::string& text,
                            const std::string& hint = "see the inputs in the bundle's README") {
  return Error(Code::bad_input, text, hint);
}

/// Sizes as text, such as `batch 1, sequence 16`.
inline std::string format_sizes(const Sizes& sizes) {
  std::vector<std::string> texts;
  for (const auto& [dim, size] : sizes) texts.push_back(dim + " " + std::to_string(size));
  return join(texts, ", ");
}

/// Returns a dimension's size, or another where the sizes have none of that name.
inline std::int64_t find_size(const Sizes& sizes, const std::string& dim, std::int64_t otherwise) {
  for (const auto& [name, size] : sizes) {
    if (name == dim) return size;
  }
  return otherwise;
}

/// Whether a bucket is as large as the sizes, or larger, in each dimension.
inline bool can_hold(const Sizes& bucket, const Sizes& sizes) {
  return std::all_of(sizes.begin(), sizes.end(), [&](const auto& each) {
    return each.second <= find_size(bucket, each.first, each.second);
  });
}

/// Whether a bucket has just the sizes, in any order.
inline bool are_equal(Sizes bucket, Sizes sizes) {
  std::sort(bucket.begin(), bucket.end());
  std::sort(sizes.begin(), sizes.end());
  return bucket == sizes;
}

/// Returns the index of the first bucket that holds the sizes, or that has just these.
///
/// Throws `Error` (bad_input): none does.
inline std::size_t choose_bucket(const std::vector<Bucket>& buckets, const Sizes& sizes,
                                 bool exact) {
  std::vector<std::string> known;
  for (std::size_t k = 0; k < buckets.size(); ++k) {
    const Sizes& dims = buckets[k].dims;
    if (are_equal(dims, sizes) || (!exact && can_hold(dims, sizes))) return k;
    known.push_back(format_sizes(dims));
  }
  throw make_bad_input("the inputs have " + format_sizes(sizes) +
                       ", and this variant of the model takes " +
                       (exact ? "just the sizes " : "sizes up to ") + join(known, "; "));
}

/// Writes a number into one value of a tensor, as numpy converts it.
inline void store_number(std::byte* at, Type type, double number) {
  const auto store = [at](auto value) { std::memcpy(at, &value, sizeof value); };
  switch (type) {
    case Type::float32: return store(static_cast<float>(number));
    case Type::float64: return store(number);
    case Type::boolean: return store(number != 0.0);
    case Type::uint8: return store(static_cast<std::uint8_t>(number));
    case Type::int8: return store(static_cast<std::int8_t>(number));
    case Type::uint16: return store(static_cast<std::uint16_t>(number));
    case Type::int16: return store(static_cast<std::int16_t>(number));
    case Type::uint32: return store(static_cast<std::uint32_t>(number));
    case Type::int32: return store(static_cast<std::int32_t>(number));
    case Type::uint64: return store(static_cast<std::uint64_t>(number));
    case Type::int64: return store(static_cast<std::int64_t>(number));
    case Type::float16: return store(make_half(number));
  }
}

/// Whether a type holds a number, cut to a whole one where it must be.
inline bool can_store(Type type, double number) {
  const double whole = std::trunc(number);
  const auto bits = static_cast<int>(get_facts(type).size * 8);
  switch (type) {
    case Type::float16:
    case Type::float32:
    case Type::float64:
    case Type::boolean: return true;
    case Type::uint8:
    case Type::uint16:
    case Type::uint32:
    case Type::uint64: return whole >= 0 && whole < std::ldexp(1.0, bits);
    default: return whole >= -std::ldexp(1.0, bits - 1) && whole < std::ldexp(1.0, bits - 1);
  }
}

/// Returns a tensor whose values are all one number. Throws `Error` (broken_bundle): the type does
/// not hold it, or the tensor is larger than `kMostClaimed`.
inline Tensor make_filled(Type type, const std::vector<std::int64_t>& shape, double number) {
  check_claimed(type, shape);
  Tensor tensor = make_tensor(type, shape);
  if (number == 0.0) return tensor;
  if (!can_store(type, number))
    throw make_broken("an input of " + std::string(get_facts(type).name) + " is filled with " +
                      format_fixed(number, 1));
  const std::size_t size = get_facts(type).size;
  for (std::size_t at = 0; at < tensor.bytes.size(); at += size)
    store_number(tensor.bytes.data() + at, type, number);
  return tensor;
}

/// Copies values of one tensor into another of the same rank: those of `part`, which both hold.
/// Value `index` of the first dimension comes from `index % source`, and so on: sources may repeat.
inline void copy_part(const TensorView& from, Tensor& into, const std::vector<std::int64_t>& part) {
  const std::size_t rank = part.size(), size = get_facts(from.type).size;
  if (count_values(part) == 0) return;
  const auto* source = static_cast<const std::byte*>(from.data);
  if (rank == 0) {
    std::memcpy(into.bytes.data(), source, size);
    return;
  }
  std::vector<std::int64_t> at(rank, 0);
  const std::int64_t row = part[rank - 1], whole = std::min(row, from.shape[rank - 1]);
  for (;;) {
    std::int64_t source_at = 0, target_at = 0;
    for (std::size_t axis = 0; axis < rank; ++axis) {
      source_at = source_at * from.shape[axis] + at[axis] % from.shape[axis];
      target_at = target_at * into.shape[axis] + at[axis];
    }
    for (std::int64_t done = 0; done < row; done += whole) {
      const auto count = static_cast<std::size_t>(std::min(whole, row - done));
      std::memcpy(into.bytes.data() + static_cast<std::size_t>(target_at + done) * size,
                  source + static_cast<std::size_t>(source_at) * size, count * size);
    }
    std::size_t axis = rank - 1;
    while (axis > 0 && ++at[axis - 1] == part[axis - 1]) at[--axis] = 0;
    if (axis == 0) return;
  }
}

/// The symbolic dimensions of a model's inputs, and what fills them. Threads may share it.
class InputShapes {
 public:
  explicit InputShapes(const Manifest& manifest) : inputs_(manifest.inputs()) {
    const Json* described = manifest.json().find("input_descriptions");
    if (described == nullptr) return;
    for (const auto& [name, each] : described->members()) {
      if (each.kind() == Json::Kind::null) continue;
      const Json* fill = each.find("pad");
      if (fill != nullptr)
        fills_[name] = fill->kind() == Json::Kind::boolean ? fill->boolean() : fill->number();
      if (each.find("mask") != nullptr) masks_.push_back(name);
    }
  }

  /// Whether a caller may leave an input out.
  bool is_mask(const std::string& name) const {
    return std::find(masks_.begin(), masks_.end(), name) != masks_.end();
  }

  /// Throws `Error` (bad_input) unless a caller's inputs are what the model takes.
  void check(const TensorViews& given) const {
    std::vector<std::string> wanted, got;
    bool fits = true;
    for (const TensorSpec& spec : inputs_) {
      wanted.push_back(quote(spec.name));
      fits = fits && (is_mask(spec.name) || given.count(spec.name) != 0);
    }
    for (const auto& each : given) {
      got.push_back(quote(each.first));
      fits = fits && std::any_of(inputs_.begin(), inputs_.end(),
                                 [&](const TensorSpec& spec) { return spec.name == each.first; });
    }
    std::sort(wanted.begin(), wanted.end());
    if (!fits)
      throw make_bad_input("the inputs are [" + join(got, ", ") + "], expected [" +
                           join(wanted, ", ") + "]");
    for (const TensorSpec& spec : inputs_) {
      const auto found = given.find(spec.name);
      if (found != given.end()) check_one(spec, found->second);
    }
  }

  /// Returns the size of each symbolic dimension. Throws `Error` (bad_input): two inputs do not
  /// agree about one.
  Sizes find_sizes(const TensorViews& feed) const {
    Sizes sizes;
    std::vector<std::string> owners;
    for (const TensorSpec& spec : inputs_) {
      const auto found = feed.find(spec.name);
      for (std::size_t axis = 0; found != feed.end() && axis < spec.shape.size(); ++axis) {
        const std::string& dim = spec.shape[axis].name;
        const std::int64_t size = found->second.shape[axis];
        if (dim.empty() || dim == "?") continue;
        const auto same = std::find_if(sizes.begin(), sizes.end(),
                                       [&](const auto& each) { return each.first == dim; });
        if (same == sizes.end()) {
          sizes.emplace_back(dim, size);
          owners.push_back(spec.name);
        } else if (same->second != size) {
          throw make_bad_input("the inputs do not fit together: " + quote(dim) + " is " +
                               std::to_string(same->second) + " in " +
                               quote(owners[static_cast<std::size_t>(same - sizes.begin())]) +
                               " and " + std::to_string(size) + " in " + quote(spec.name));
        }
      }
    }
    return sizes;
  }

  /// Adds the masks that are missing to a feed: ones, of the other inputs' sizes. They are kept in
  /// `made`.
  void add_masks(TensorViews& feed, Tensors& made) const {
    const Sizes sizes = feed.size() < inputs_.size() ? find_sizes(feed) : Sizes();
    for (const TensorSpec& spec : inputs_) {
      if (feed.count(spec.name) != 0) continue;
      std::vector<std::int64_t> shape;
      for (const Dimension& dim : spec.shape) {
        shape.push_back(dim.name.empty() ? dim.size : find_size(sizes, dim.name, -1));
        if (shape.back() < 0)
          throw make_bad_input("the size " + quote(dim.name) + " of the mask " + quote(spec.name) +
                                   " is in no other input",
                               "give the mask, too");
      }
      feed[spec.name] = (made[spec.name] = make_filled(spec.type, shape, 1.0)).view();
    }
  }

  /// Returns the inputs filled up at the end to a bucket's sizes, which hold them.
  Tensors pad(const TensorViews& feed, const Sizes& bucket) const {
    Tensors padded;
    for (const TensorSpec& spec : inputs_) {
      const TensorView& view = feed.find(spec.name)->second;
      const auto fill = fills_.find(spec.name);
      Tensor whole = make_filled(view.type, resize_shape(spec, view.shape, bucket),
                                 fill == fills_.end() ? 0.0 : fill->second);
      copy_part(view, whole, view.shape);
      padded.emplace(spec.name, std::move(whole));
    }
    return padded;
  }

  /// Returns the inputs cut, or repeated from their beginning, to other sizes.
  Tensors resize(const TensorViews& feed, const Sizes& sizes) const {
    Tensors changed;
    for (const TensorSpec& spec : inputs_) {
      const TensorView& view = feed.find(spec.name)->second;
      const std::vector<std::int64_t> shape =
          count_values(view.shape) == 0 ? view.shape : resize_shape(spec, view.shape, sizes);
      check_claimed(view.type, shape);
      Tensor other = make_tensor(view.type, shape);
      copy_part(view, other, other.shape);
      changed.emplace(spec.name, std::move(other));
    }
    return changed;
  }

 private:
  static void check_one(const TensorSpec& spec, const TensorView& view) {
    const std::string name = "input " + quote(spec.name);
    const std::string wanted = get_facts(spec.type).name;
    if (view.type != spec.type) {
      throw make_bad_input(name + " is " + get_facts(view.type).name + ", expected " + wanted,
                           "give values of " + wanted);
    }
    bool fits = view.shape.size() == spec.shape.size();
    std::vector<std::string> expected;
    for (std::size_t axis = 0; axis < spec.shape.size(); ++axis) {
      const Dimension& dim = spec.shape[axis];
      expected.push_back(dim.name.empty() ? std::to_string(dim.size) : quote(dim.name));
      fits = fits && (!dim.name.empty() || view.shape[axis] == dim.size);
    }
    if (!fits)
      throw make_bad_input(name + " has shape " + format_shape(view.shape) + ", expected [" +
                           join(expected, ", ") + "]");
    const std::size_t bytes = count_bytes(view.type, view.shape);
    if (view.bytes != bytes || (view.data == nullptr && bytes != 0)) {
      const std::size_t found = view.data == nullptr ? 0 : view.bytes;
      throw make_bad_input(name + " has " + std::to_string(found) + " bytes, its shape needs " +
                           std::to_string(bytes));
    }
  }

  static std::vector<std::int64_t> resize_shape(const TensorSpec& spec,
                                                std::vector<std::int64_t> shape,
                                                const Sizes& sizes) {
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      if (!spec.shape[axis].name.empty())
        shape[axis] = find_size(sizes, spec.shape[axis].name, shape[axis]);
    }
    return shape;
  }

  const std::vector<TensorSpec>& inputs_;
  std::map<std::string, double> fills_;
  std::vector<std::string> masks_;
};

/// Cuts each axis in `slices` of the outputs back to its dimension's size.
inline void cut_outputs(Tensors& outputs, const std::vector<Slice>& slices, const Sizes& sizes) {
  for (const Slice& slice : slices) {
    const auto found = outputs.find(slice.output);
    const std::int64_t size = find_size(sizes, slice.dim, -1);
    if (found == outputs.end() || slice.axis >= found->second.shape.size() || size < 0) {
      throw make_broken("the manifest cuts axis " + std::to_string(slice.axis) + " of " +
                        slice.output + " to " + slice.dim);
    }
    Tensor& whole = found->second;
    std::vector<std::int64_t> shape = whole.shape;
    shape[slice.axis] = std::min(shape[slice.axis], size);
    Tensor cut = make_tensor(whole.type, shape);
    copy_part(whole.view(), cut, shape);
    whole = std::move(cut);
  }
}

}  // namespace edgepack::detail

#endif
