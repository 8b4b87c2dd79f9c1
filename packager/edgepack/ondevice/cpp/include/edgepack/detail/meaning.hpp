// Makes a bundle's inputs and reads its outputs, as the manifest describes them.

#ifndef EDGEPACK_DETAIL_MEANING_HPP
#define EDGEPACK_DETAIL_MEANING_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "edgepack/detail/answers.hpp"
#include "edgepack/detail/error.hpp"
#include "edgepack/detail/frames.hpp"
#include "edgepack/detail/images.hpp"
#include "edgepack/detail/json.hpp"
#include "edgepack/detail/manifest.hpp"
#include "edgepack/detail/sounds.hpp"
#include "edgepack/detail/tensor.hpp"
#include "edgepack/detail/text.hpp"
#include "edgepack/detail/wordpiece.hpp"

namespace edgepack {

/// The bytes of a file: a `.wav`, or a picture that the model decodes itself; they have to stay
/// while they are used.
struct FileBytes {
  const void* data;
  std::size_t bytes;
};

/// What one input is made of: a tensor, a picture, a text in UTF-8, or a file's bytes.
using Item = std::variant<TensorView, Frame, std::string, FileBytes>;
using Items = std::map<std::string, Item, std::less<>>;
using Answers = std::map<std::string, Answer, std::less<>>;

namespace detail {

/// A model's inputs, as they were made.
struct Feed {
  Tensors made;
  TensorViews views;
  /// The picture's place in the input; none unless there is exactly one picture of known size.
  std::optional<Placement> place;
};

/// Returns float32 values as another type of floats; as they are for float32.
inline Tensor convert_floats(Tensor tensor, Type type, const std::string& name) {
  if (type == Type::float32) return tensor;
  Tensor converted = edgepack::make_tensor(type, tensor.shape);
  const float* values = tensor.data<float>();
  for (std::size_t k = 0; k < tensor.count(); ++k) {
    const auto value = static_cast<double>(values[k]);
    if (type == Type::float16)
      converted.data<Half>()[k] = make_half(value);
    else if (type == Type::float64)
      converted.data<double>()[k] = value;
    else
      throw make_broken("the input " + name + " is no tensor of floats");
  }
  return converted;
}

/// Returns token ids as the tensor of an input.
inline Tensor make_ids(const std::vector<std::int64_t>& ids, const TensorSpec& spec) {
  if (spec.type != Type::int32 && spec.type != Type::int64)
    throw make_broken("the input " + spec.name + " is no tensor of token ids");
  Tensor tensor = edgepack::make_tensor(spec.type, {1, static_cast<std::int64_t>(ids.size())});
  for (std::size_t k = 0; k < ids.size(); ++k) {
    if (spec.type == Type::int64) {
      tensor.data<std::int64_t>()[k] = ids[k];
      continue;
    }
    const auto id = static_cast<std::int32_t>(ids[k]);
    if (id != ids[k]) throw make_broken("a token id of " + spec.name + " is too large");
    tensor.data<std::int32_t>()[k] = id;
  }
  return tensor;
}

/// Makes tensors of pictures, texts and sounds, and answers of tensors. Threads may share it:
/// all files that descriptions name are read at once.
class Meaning {
 public:
  /// Throws `Error` (broken_bundle): a file or a value is missing, or of another kind.
  explicit Meaning(const Manifest& manifest) : manifest_(&manifest) {
    if (const Json* inputs = manifest.json().find("input_descriptions")) {
      for (const auto& [name, described] : inputs->members()) read_input(name, described);
    }
    if (const Json* outputs = manifest.json().find("output_descriptions")) {
      for (const auto& [name, described] : outputs->members()) read_output(name, described);
    }
  }

  // It knows where its manifest lies.
  Meaning(const Meaning&) = delete;
  Meaning& operator=(const Meaning&) = delete;

  /// Whether an input is made of a text that is given for another.
  bool is_made(const std::string& name) const { return made_.count(name) > 0; }

  /// Returns tensors for what a caller gives.
  ///
  /// Throws `Error` (bad_input): a picture, text or sound is none; a picture is too long and thin
  /// for a model that scales it itself, a sound not as it is described; there is no such input, or
  /// it takes something else, or is made of a text that is given, too.
  Feed make_feed(const Items& items) const {
    Feed feed;
    std::size_t pictures = 0;
    for (const auto& [name, item] : items) {
      const bool is_picture = images_.count(name) > 0;
      if (is_picture) ++pictures;
      if (const auto* view = std::get_if<TensorView>(&item)) {
        feed.views[name] = *view;
      } else if (const auto* frame = std::get_if<Frame>(&item)) {
        if (!is_picture) throw make_kind_error(name, "a picture");
        feed.made[name] = make_picture(name, *frame, feed.place);
      } else if (const auto* file = std::get_if<FileBytes>(&item)) {
        feed.made[name] = make_file(name, *file);
      } else {
        make_tokens(name, std::get<std::string>(item), feed);
      }
    }
    if (pictures != 1) feed.place.reset();
    for (const auto& [name, tensor] : feed.made) {
      if (!feed.views.emplace(name, tensor.view()).second) {
        throw Error(Code::bad_input,
                    "the input " + quote(name) + " is made of the text: leave it out",
                    "give the text alone");
      }
    }
    return feed;
  }

  /// Returns what the outputs of a feed mean. Outputs that others are read with have no answer of
  /// their own; those without a description are as they are.
  ///
  /// Throws `Error`: broken_bundle where an output has not the shape that its description wants,
  /// usage where the options are none.
  Answers make_answers(const Tensors& outputs, const Feed& feed,
                       const AnswerOptions& options) const {
    check_options(options);
    Answers answers;
    for (const auto& [name, tensor] : outputs) {
      if (read_too_.count(name) > 0) continue;
      const auto found = outputs_.find(name);
      if (found == outputs_.end()) {
        answers.emplace(name, tensor);
        continue;
      }
      answers.emplace(name, make_one(name, found->second, outputs, feed, options));
    }
    return answers;
  }

 private:
  struct Output {
    const Json* described;
    std::vector<std::string> labels;
    std::optional<Table> priors;
  };

  /// An input that is made of a text, and those that are made with it.
  struct Text {
    std::int64_t length;
    std::string attention_mask, token_type_ids;
    /// One of the two.
    std::optional<WordPiece> pieces;
    std::optional<InModel> in_model;
  };

  void read_input(const std::string& name, const Json& described) {
    if (const Json* image = described.find("image"))
      images_.emplace(name, ImageDescription::read(*image));
    if (const Json* sound = described.find("sound"))
      sounds_.emplace(name, SoundDescription::read(*sound));
    if (const Json* tokens = described.find("tokens"))
      texts_.emplace(name, read_tokens(name, *tokens));
  }

  Text read_tokens(const std::string& name, const Json& tokens) {
    Text text{tokens.at("length").integer(), {}, {}, {}, {}};
    check_claimed(Type::int64, {text.length});
    const auto set = [&](std::string& input, const char* key) {
      const Json* made = tokens.find(key);
      if (made == nullptr) return;
      input = made->text();
      made_.insert(input);
    };
    set(text.attention_mask, "attention_mask");
    set(text.token_type_ids, "token_type_ids");
    const std::string path = "files/" + tokens.at("file").text();
    const std::string where = manifest_->folder() + "/" + path;
    const Json tokenizer = Json::parse(manifest_->read(path), where);
    try {
      if (find_spec(name).type == Type::uint8)
        text.in_model.emplace(tokenizer);
      else
        text.pieces.emplace(tokenizer);
    } catch (const TokenizerError& error) {
      throw make_broken(where + ": " + error.what());
    }
    return text;
  }

  void read_output(const std::string& name, const Json& described) {
    if (described.at("kind").text() == "probability" && !has_few(name)) return;
    Output output{&described, {}, {}};
    if (const Json* labels = described.find("labels"))
      output.labels = split_lines(read_text(labels->text()));
    if (const Json* priors = described.find("priors"))
      output.priors = detail::read_priors(read_text(priors->text()));
    if (described.at("kind").text() == "detection") {
      for (const std::string& each : list_read_too(described)) read_too_.insert(each);
    }
    outputs_.emplace(name, std::move(output));
  }

  /// The text of one of the project's files.
  std::string read_text(const std::string& name) const {
    std::string text = manifest_->read("files/" + name);
    if (find_bad_utf8(text) != std::string::npos)
      throw make_broken(manifest_->folder() + "/files/" + name + " is no UTF-8");
    return text;
  }

  /// Whether a sample of an output has a known, small number of values: of more, the answer is the
  /// tensor.
  bool has_few(const std::string& name) const {
    constexpr std::int64_t most_decisions = 1000;
    for (const TensorSpec& spec : manifest_->outputs()) {
      if (spec.name != name) continue;
      std::int64_t count = 1;
      for (std::size_t axis = 0; axis < spec.shape.size(); ++axis) {
        const std::int64_t size = spec.shape[axis].size;
        if (size < 0 && axis > 0) return false;
        count *= size < 0 ? 1 : std::min(size, most_decisions + 1);
        if (count > most_decisions) return false;
      }
    }
    return true;
  }

  const TensorSpec& find_spec(const std::string& name) const {
    for (const TensorSpec& spec : manifest_->inputs()) {
      if (spec.name == name) return spec;
    }
    throw Error(Code::bad_input, "the model has no input " + quote(name),
                "the model's inputs are in Model::inputs");
  }

  Error make_kind_error(const std::string& name, const std::string& what) const {
    const TensorSpec& spec = find_spec(name);
    return Error(Code::bad_input, "the input " + quote(spec.name) + " is not made of " + what,
                 "give it as the bundle's README says");
  }

  Tensor make_picture(const std::string& name, const Frame& frame,
                      std::optional<Placement>& place) const {
    const TensorSpec& spec = find_spec(name);
    const ImageDescription& described = images_.at(name);
    if (spec.shape.size() == 1) throw make_kind_error(name, "pixels: the model decodes a file");
    const Pixels pixels = make_pixels(frame);
    place = find_placement(pixels.width, pixels.height, described.resize);
    if (spec.type != Type::uint8)
      return convert_floats(make_tensor(pixels, described), spec.type, name);
    check_scaled(*place);
    Tensor tensor = edgepack::make_tensor(Type::uint8, {pixels.height, pixels.width, 3});
    std::memcpy(tensor.bytes.data(), pixels.values.data(), pixels.values.size());
    return tensor;
  }

  /// Adds the token ids of a text, and what is made with them as far as the model takes it.
  void make_tokens(const std::string& name, const std::string& text, Feed& feed) const {
    const auto found = texts_.find(name);
    if (found == texts_.end()) throw make_kind_error(name, "a text");
    const std::size_t bad = find_bad_utf8(text);
    if (bad != std::string::npos) {
      throw Error(Code::bad_input,
                  "the text for " + quote(name) + " is no UTF-8 at byte " + std::to_string(bad),
                  "give it in UTF-8");
    }
    const TensorSpec& spec = find_spec(name);
    const auto& [length, mask, kinds, pieces, in_model] = found->second;
    if (in_model) feed.made[name] = make_bytes(in_model->encode_text(text));
    if (!pieces) return;
    const bool is_fixed = !spec.shape.empty() && spec.shape.back().name.empty();
    const Encoding encoding = pieces->encode(text, static_cast<std::size_t>(length), is_fixed);
    for (const TensorSpec& each : manifest_->inputs()) {
      if (each.name == name) feed.made[name] = make_ids(encoding.input_ids, each);
      if (each.name == mask) feed.made[mask] = make_ids(encoding.attention_mask, each);
      if (each.name == kinds) feed.made[kinds] = make_ids(encoding.token_type_ids, each);
    }
  }

  /// The tensor of a sound's file, or the bytes of a picture's.
  ///
  /// Other bytes are refused here: on those the decoding operator ends the process
  /// (onnxruntime-extensions 0.15.2, tried).
  Tensor make_file(const std::string& name, const FileBytes& file) const {
    const TensorSpec& spec = find_spec(name);
    const std::string_view bytes(static_cast<const char*>(file.data), file.bytes);
    const auto sound = sounds_.find(name);
    if (sound != sounds_.end()) {
      Tensor tensor = make_sound(bytes, sound->second, spec.type, spec.shape.size());
      return spec.type == Type::int16 ? tensor : convert_floats(std::move(tensor), spec.type, name);
    }
    if (images_.count(name) == 0 || spec.shape.size() != 1)
      throw make_kind_error(name, "a file's bytes");
    constexpr std::string_view jpeg = "\xFF\xD8\xFF", png = "\x89PNG\r\n\x1A\n";
    if (bytes.substr(0, jpeg.size()) != jpeg && bytes.substr(0, png.size()) != png) {
      throw Error(Code::bad_input,
                  "the picture is not the bytes of a JPEG or PNG file, which the model decodes"
                  " itself",
                  "give the whole file");
    }
    return make_bytes(bytes);
  }

  static Tensor make_bytes(std::string_view bytes) {
    Tensor tensor = edgepack::make_tensor(Type::uint8, {static_cast<std::int64_t>(bytes.size())});
    if (!bytes.empty()) std::memcpy(tensor.bytes.data(), bytes.data(), bytes.size());
    return tensor;
  }

  static Answer make_one(const std::string& name, const Output& output, const Tensors& outputs,
                         const Feed& feed, const AnswerOptions& options) {
    std::vector<TensorView> read = {outputs.at(name).view()};
    if (output.described->at("kind").text() == "detection") {
      for (const std::string& each : list_read_too(*output.described)) {
        const auto found = outputs.find(each);
        if (found == outputs.end()) throw make_broken("there is no output " + each);
        read.push_back(found->second.view());
      }
    }
    Given given;
    given.place = feed.place ? &*feed.place : nullptr;
    given.priors = output.priors ? &*output.priors : nullptr;
    if (const Json* mask = output.described->find("mask")) {
      const auto found = feed.views.find(mask->text());
      if (found != feed.views.end()) given.mask = &found->second;
    }
    return make_answer(read, {*output.described, output.labels, options}, given);
  }

  const Manifest* manifest_;
  std::map<std::string, ImageDescription, std::less<>> images_;
  std::map<std::string, SoundDescription, std::less<>> sounds_;
  std::map<std::string, Text, std::less<>> texts_;
  std::map<std::string, Output, std::less<>> outputs_;
  /// Outputs that others are read with.
  std::set<std::string> read_too_;
  /// Inputs that are made of the text of another.
  std::set<std::string> made_;
};

}  // namespace detail
}  // namespace edgepack

#endif
