// Golden samples: their files, and how near a variant's outputs are to them.

#ifndef EDGEPACK_DETAIL_GOLDENS_HPP
#define EDGEPACK_DETAIL_GOLDENS_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "edgepack/detail/error.hpp"
#include "edgepack/detail/manifest.hpp"
#include "edgepack/detail/tensor.hpp"

namespace edgepack::detail {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "golden files are little-endian, and so are all targets");

/// The closeness in dB of equal tensors.
constexpr double kEqualDb = 200.0;
/// The share of an integer or bool output's elements, such as class indices, that must be equal.
constexpr double kLeastEqualShare = 0.99;
constexpr double kFarthestDb = -std::numeric_limits<double>::infinity();

/// Returns the values of a file that has those of each channel once, and a byte for each place.
///
/// Throws `Error` (broken_bundle): the palette is none, or not all there, or a byte stands for no
/// value of it.
inline std::string unpack_palette(const std::string& data, std::size_t size, const Palette& palette,
                                  const std::string& path) {
  std::vector<std::size_t> starts;
  std::size_t count = 0;
  for (const std::size_t each : palette.sizes) {
    if (each == 0 || each > 256)
      throw make_broken(path + " has a palette of " + std::to_string(each));
    starts.push_back(count);
    count += each;
  }
  if (starts.empty() || palette.step < 1 || data.size() < count * size)
    throw make_broken(path + " is shorter than its palette");
  std::string values;
  values.reserve((data.size() - count * size) * size);
  for (std::size_t at = count * size, place = 0; at < data.size(); ++at, ++place) {
    const std::size_t channel = place / static_cast<std::size_t>(palette.step) % starts.size();
    const std::size_t which = static_cast<unsigned char>(data[at]);
    if (which >= palette.sizes[channel])
      throw make_broken(path + ": a byte is beyond its channel's palette");
    values.append(data, (starts[channel] + which) * size, size);
  }
  return values;
}

/// Reads one golden tensor; of an output with a stride only every so many-th value is there, in a
/// vector.
///
/// Throws `Error` (broken_bundle): the file is missing, or not as large as the manifest says.
inline Tensor read_golden(const Manifest& manifest, const GoldenEntry& entry) {
  const std::size_t size = get_facts(entry.type).size;
  constexpr std::size_t longest_palette = 256 * sizeof(double);
  std::string data = manifest.read(
      entry.path, count_bytes(entry.type, entry.shape) +
                      (entry.palette ? entry.palette->sizes.size() * longest_palette : 0));
  if (entry.palette) data = unpack_palette(data, size, *entry.palette, entry.path);
  std::vector<std::int64_t> shape = entry.shape;
  if (entry.stride > 1) shape = {static_cast<std::int64_t>(data.size() / size)};
  if (data.size() != count_bytes(entry.type, shape)) {
    throw make_broken(manifest.folder() + "/" + entry.path + " has " + std::to_string(data.size()) +
                      " bytes, not those of " + get_facts(entry.type).name + " " +
                      format_shape(entry.shape));
  }
  Tensor tensor = make_tensor(entry.type, shape);
  std::copy_n(reinterpret_cast<const std::byte*>(data.data()), data.size(), tensor.bytes.begin());
  return tensor;
}

/// Reads several golden tensors, by name.
inline Tensors read_goldens(const Manifest& manifest, const std::vector<GoldenEntry>& entries) {
  Tensors tensors;
  for (const GoldenEntry& each : entries) tensors[each.name] = read_golden(manifest, each);
  return tensors;
}

/// What is summed up over the values of one quantity.
struct Difference {
  double signal = 0;
  double noise = 0;
  std::size_t count = 0;
  std::size_t equal = 0;
  bool same_infinities = true;

  void add_number(double golden, double found) {
    if (!std::isfinite(golden)) {
      same_infinities =
          same_infinities && (golden == found || (std::isnan(golden) && std::isnan(found)));
      return;
    }
    signal += golden * golden;
    noise += (golden - found) * (golden - found);
  }

  void add_element(bool is_equal) {
    ++count;
    equal += is_equal ? 1 : 0;
  }

  /// The ratio of signal to noise in dB, at most `kEqualDb`.
  double sqnr_db() const {
    if (!same_infinities) return kFarthestDb;
    if (noise == 0.0) return kEqualDb;
    if (!std::isfinite(noise) || signal == 0.0) return kFarthestDb;
    return std::min(kEqualDb, 10 * std::log10(signal / noise));
  }

  /// `kEqualDb` where enough elements are equal.
  double equality_db() const {
    const double share = count == 0 ? 1.0 : static_cast<double>(equal) / static_cast<double>(count);
    return share >= kLeastEqualShare ? kEqualDb : kFarthestDb;
  }
};

/// Returns the quantity of each channel.
inline std::vector<std::size_t> list_channels(const Quantities& quantities) {
  std::vector<std::size_t> channels;
  for (const auto& [count, number] : quantities.runs)
    channels.insert(channels.end(), static_cast<std::size_t>(count), number);
  return channels;
}

/// Returns how near an output is to its golden one in dB, less the entry's `extra_db`; of an output
/// that holds several quantities, that of the worst one.
inline double measure_closeness_db(const GoldenEntry& entry, const Tensor& golden,
                                   const Tensor& output) {
  const std::size_t size = get_facts(entry.type).size;
  const std::size_t found = (count_values(output.shape) + entry.stride - 1) / entry.stride;
  if (output.shape != entry.shape || output.type != entry.type || golden.count() != found)
    return kFarthestDb;
  const std::vector<std::size_t> channels = list_channels(entry.quantities);
  std::vector<Difference> differences(entry.quantities.extra_db.size());
  const bool numbers = is_float(entry.type);
  for (std::size_t k = 0; k < found; ++k) {
    const std::size_t place = k * entry.stride;
    Difference& each =
        differences[channels[place / static_cast<std::size_t>(entry.quantities.size) %
                             channels.size()]];
    const std::byte* wanted = golden.bytes.data() + k * size;
    const std::byte* here = output.bytes.data() + place * size;
    if (numbers) {
      each.add_number(load_number(wanted, entry.type), load_number(here, entry.type));
    } else {
      each.add_element(std::memcmp(wanted, here, size) == 0);
    }
  }
  double worst_db = kEqualDb;
  for (std::size_t k = 0; k < differences.size(); ++k) {
    const double db = numbers ? differences[k].sqnr_db() : differences[k].equality_db();
    worst_db = std::min(worst_db, db == kEqualDb ? db : db - entry.quantities.extra_db[k]);
  }
  return worst_db;
}

/// Returns how near outputs are to a variant's golden ones of a sample, in the worst output.
///
/// Throws `Error` (broken_bundle): the golden outputs are not there.
inline double measure_sample_db(const Manifest& manifest, std::size_t sample,
                                const std::string& variant, const Tensors& outputs) {
  const auto& by_variant = manifest.goldens()[sample].outputs;
  const auto entries = by_variant.find(variant);
  if (entries == by_variant.end())
    throw make_broken("the manifest has no golden outputs of " + variant);
  double worst_db = kEqualDb;
  for (const GoldenEntry& each : entries->second) {
    const Tensor golden = read_golden(manifest, each);
    const auto output = outputs.find(each.name);
    worst_db = std::min(worst_db, output == outputs.end()
                                      ? kFarthestDb
                                      : measure_closeness_db(each, golden, output->second));
  }
  return worst_db;
}

}  // namespace edgepack::detail

#endif
