// Sounds of `.wav` files to input tensors, as `sound` in `input_descriptions` says.
//
// PCM of 8, 16, 24 and 32 bits, and floats; nothing is resampled or mixed. Source of the format:
// Microsoft, Multiple Channel Audio Data and WAVE Files; RFC 2361 for the codes. Values, and what
// is said of files that are not taken, are those of edgepack_sounds.py.

#ifndef EDGEPACK_DETAIL_SOUNDS_HPP
#define EDGEPACK_DETAIL_SOUNDS_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "edgepack/detail/error.hpp"
#include "edgepack/detail/json.hpp"
#include "edgepack/detail/tensor.hpp"
#include "edgepack/detail/text.hpp"

namespace edgepack::detail {

/// `sound` of an input.
struct SoundDescription {
  /// Values a second.
  std::int64_t rate;
  std::int64_t channels;
  /// Values of each channel; 0: the file's.
  std::int64_t length;

  /// Throws `Error` (broken_bundle): a value is missing, or of another kind.
  static SoundDescription read(const Json& json) {
    const Json* length = json.find("length");
    const SoundDescription found{json.at("rate").integer(), json.at("channels").integer(),
                                 length == nullptr ? 0 : length->integer()};
    check_claimed(Type::float64, {found.channels, found.length});
    return found;
  }
};

/// What a file holds: its values, as they lie in the file, and what they are.
struct Sound {
  std::uint64_t code, channels, rate, bits;
  std::string_view values;

  std::size_t moment() const { return static_cast<std::size_t>(channels * bits / 8); }
};

inline Error make_sound_error(const std::string& what, std::string hint) {
  return Error(Code::bad_input, "the sound " + what, std::move(hint));
}

inline Error make_format_error(const std::string& what) {
  return make_sound_error(what, "convert it: ffmpeg -i OLD -c:a pcm_s16le NEW.wav");
}

inline std::string format_channels(std::uint64_t count) {
  return std::to_string(count) + (count == 1 ? " channel" : " channels");
}

/// What the content of a `fmt ` chunk says.
inline Sound parse_format(std::string_view content) {
  constexpr std::uint64_t pcm = 1, floats = 3, extensible = 0xFFFE;
  Sound sound = {};
  const bool is_whole = content.size() >= 16;
  if (is_whole) sound.code = read_little(content.substr(0, 2));
  if (!is_whole || (sound.code == extensible && content.size() < 26))
    throw make_format_error("has a broken format: " + std::to_string(content.size()) + " bytes");
  // The first two bytes of the GUID behind are the code.
  if (sound.code == extensible) sound.code = read_little(content.substr(24, 2));
  sound.channels = read_little(content.substr(2, 2));
  sound.rate = read_little(content.substr(4, 4));
  sound.bits = read_little(content.substr(14, 2));
  const std::uint64_t bits = sound.bits, size = read_little(content.substr(12, 2));
  const bool is_pcm = sound.code == pcm && (bits == 8 || bits == 16 || bits == 24 || bits == 32);
  const bool is_float = sound.code == floats && (bits == 32 || bits == 64);
  if ((!is_pcm && !is_float) || sound.channels == 0 || sound.rate == 0) {
    constexpr std::pair<std::uint64_t, const char*> names[] = {
        {pcm, "PCM"},  {floats, "floats"}, {2, "ADPCM"}, {6, "A-law"},
        {7, "mu-law"}, {17, "IMA ADPCM"},  {85, "MP3"}};
    std::string kind = "code " + std::to_string(sound.code);
    for (const auto& [code, name] : names) {
      if (code == sound.code) kind = name;
    }
    throw make_format_error("holds " + kind + " of " + std::to_string(bits) + " bits, " +
                            std::to_string(sound.channels) + " channels and " +
                            std::to_string(sound.rate) + " Hz");
  }
  if (size != sound.channels * bits / 8) {
    throw make_format_error("has " + std::to_string(size) + " bytes for each moment, and " +
                            format_channels(sound.channels) + " of " + std::to_string(bits) +
                            " bits");
  }
  return sound;
}

/// Returns the sound in a file's content. Throws `Error` (bad_input).
inline Sound parse_sound(std::string_view data) {
  if (data.substr(0, 4) != "RIFF" || data.size() < 12 || data.substr(8, 4) != "WAVE") {
    throw make_format_error("is no .wav file: it begins with b" +
                            quote(data.substr(0, 12), true));
  }
  // The first chunk of each name counts; a view without data is one that is not there.
  std::string_view format, values;
  for (std::size_t at = 12; data.size() - at >= 8;) {
    const std::string_view name = data.substr(at, 4);
    const std::uint64_t size = read_little(data.substr(at + 4, 4));
    const std::string_view content = data.substr(at + 8, static_cast<std::size_t>(size));
    if (content.size() < size) {
      std::string latin;
      for (const char c : name) append_utf8(latin, static_cast<unsigned char>(c));
      throw make_sound_error("is broken off: its part " + quote(latin) + " has " +
                                 std::to_string(content.size()) + " of " + std::to_string(size) +
                                 " bytes",
                             "copy or record it again");
    }
    if (name == "fmt " && format.data() == nullptr) format = content;
    if (name == "data" && values.data() == nullptr) values = content;
    // Chunks begin at even places.
    at = std::min(data.size(), at + 8 + content.size() + content.size() % 2);
  }
  if (format.data() == nullptr || values.data() == nullptr) {
    const char* missing = format.data() == nullptr ? "format" : "sound";
    throw make_format_error(std::string("has no ") + missing + " in it");
  }
  Sound sound = parse_format(format);
  sound.values = values;
  if (values.size() < sound.moment())
    throw make_sound_error("is empty", "remove it, or record it again");
  return sound;
}

/// Returns a value by its number in the file, from -1 to 1; floats are as they are.
inline double read_value(const Sound& sound, std::size_t number) {
  const auto bytes = static_cast<std::size_t>(sound.bits / 8);
  const std::uint64_t raw = read_little(sound.values.substr(number * bytes, bytes));
  if (sound.code == 3 && bytes == 8) {
    double value = 0;
    std::memcpy(&value, &raw, sizeof value);
    return value;
  }
  const auto low = static_cast<std::uint32_t>(raw);
  if (sound.code == 3) {
    float value = 0;
    std::memcpy(&value, &low, sizeof value);
    return static_cast<double>(value);
  }
  // Only 8 bits are without a sign.
  if (bytes == 1) return (static_cast<double>(raw) - 128) / 128;
  const double scale = std::ldexp(1.0, static_cast<int>(sound.bits) - 1);
  const auto whole = static_cast<double>(raw);
  return (whole < scale ? whole : whole - 2 * scale) / scale;
}

/// Returns the tensor of a file's sound, its first `length` values filled up with silence: float32,
/// or int16 where that is the type.
///
/// `rank` is 1 for `(N,)`, 2 for `(1, N)`, 3 for `(1, C, N)`. Throws `Error` (bad_input): the file
/// is no `.wav`, holds something else than PCM or floats, or nothing, or values that are not finite,
/// or ends before its end, or has another rate or number of channels.
inline Tensor make_sound(std::string_view data, const SoundDescription& described, Type type,
                         std::size_t rank) {
  const Sound sound = parse_sound(data);
  const auto channels = static_cast<std::size_t>(sound.channels);
  std::size_t count = sound.values.size() / sound.moment();
  if (described.length > 0)
    count = static_cast<std::size_t>(
        std::min(static_cast<std::uint64_t>(count), static_cast<std::uint64_t>(described.length)));
  // What is beyond rounds to infinity.
  constexpr double highest = 0x1.ffffffp127;
  for (std::size_t k = 0; sound.code == 3 && k < count * channels; ++k) {
    if (!(std::fabs(read_value(sound, k)) < highest))
      throw make_sound_error("holds values that are not finite", "copy or record it again");
  }
  if (static_cast<std::int64_t>(sound.rate) != described.rate ||
      static_cast<std::int64_t>(sound.channels) != described.channels) {
    throw make_sound_error("has " + std::to_string(sound.rate) + " Hz and " +
                               format_channels(sound.channels) + ", and the input takes " +
                               std::to_string(described.rate) + " Hz and " +
                               format_channels(static_cast<std::uint64_t>(described.channels)),
                           "convert it: ffmpeg -i OLD.wav -ar " + std::to_string(described.rate) +
                               " -ac " + std::to_string(described.channels) + " NEW.wav");
  }
  const auto length =
      described.length > 0 ? described.length : static_cast<std::int64_t>(count);
  std::vector<std::int64_t> shape = {described.channels, length};
  if (rank > 2) shape.insert(shape.begin(), 1);
  if (rank == 1) shape = {static_cast<std::int64_t>(count_values(shape))};
  const Type made = type == Type::int16 ? type : Type::float32;
  Tensor tensor = edgepack::make_tensor(made, std::move(shape));
  for (std::size_t k = 0; k < count * channels; ++k) {
    const auto value = static_cast<float>(read_value(sound, k));
    const std::size_t place = k % channels * static_cast<std::size_t>(length) + k / channels;
    if (made == Type::float32) {
      tensor.data<float>()[place] = value;
    } else {
      const float level = std::clamp(std::nearbyint(value * 32768.0F), -32768.0F, 32767.0F);
      tensor.data<std::int16_t>()[place] = static_cast<std::int16_t>(level);
    }
  }
  return tensor;
}

}  // namespace edgepack::detail

#endif
