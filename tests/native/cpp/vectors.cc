// Makes what tests/mobile/vectors.py, refusals.py and text_cases.py write of pictures, frames,
// answers, texts and sounds: files for each case.
//
//     vectors CASES OUT

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <limits>

#include "edgepack/detail/answers.hpp"
#include "edgepack/detail/frames.hpp"
#include "edgepack/detail/images.hpp"
#include "edgepack/detail/meaning.hpp"
#include "edgepack/detail/sounds.hpp"
#include "edgepack/detail/unicode.hpp"
#include "edgepack/detail/wordpiece.hpp"

namespace fs = std::filesystem;
using namespace edgepack;
using edgepack::detail::Json;

namespace {

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const fs::path& path, const void* data, std::size_t bytes) {
  std::ofstream(path, std::ios::binary)
      .write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
}

void write_tensor(const fs::path& path, const Tensor& tensor) {
  write_file(path, tensor.bytes.data(), tensor.bytes.size());
}

void write_image(const fs::path& folder, const fs::path& out, const Json& facts) {
  const std::string bytes = read_file(folder / "pixels.bin");
  const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data());
  const std::int64_t width = facts.at("width").integer(), height = facts.at("height").integer();
  const bool has_opacity = bytes.size() == static_cast<std::size_t>(width * height * 4);
  const Frame frame = make_frame(data, width, height, has_opacity ? Format::rgba : Format::rgb);
  const auto described = detail::ImageDescription::read(facts.at("description"));
  write_tensor(out / "tensor.bin", detail::make_tensor(detail::make_pixels(frame), described));
}

/// A frame of a case, and what its planes lie in.
struct FrameCase {
  Frame frame;
  std::vector<std::string> buffers;
};

FrameCase read_frame(const fs::path& folder, const Json& facts) {
  FrameCase read;
  auto& [frame, buffers] = read;
  const std::string& format = facts.at("format").text();
  for (int k = 0; k < 6; ++k) {
    if (format == detail::kFormats[k]) frame.format = static_cast<Format>(k);
  }
  frame.width = facts.at("width").integer();
  frame.height = facts.at("height").integer();
  frame.rotation = static_cast<int>(facts.at("rotation").integer());
  frame.matrix = facts.at("matrix").text() == "bt601" ? Matrix::bt601 : Matrix::bt709;
  frame.range = facts.at("range").text() == "full" ? Range::full : Range::video;
  for (const Json& plane : facts.at("planes").items())
    buffers.push_back(read_file(folder / plane.at("path").text()));
  for (std::size_t k = 0; k < buffers.size(); ++k) {
    const Json& plane = facts.at("planes").items()[k];
    const auto offset = static_cast<std::size_t>(plane.at("offset").integer());
    frame.planes.push_back({reinterpret_cast<const std::uint8_t*>(buffers[k].data()) + offset,
                            buffers[k].size() - offset, plane.at("row_stride").integer(),
                            plane.at("pixel_stride").integer()});
  }
  return read;
}

void write_frame(const fs::path& folder, const fs::path& out, const Json& facts) {
  const FrameCase read = read_frame(folder, facts);
  const Frame& frame = read.frame;
  const auto described = detail::ImageDescription::read(facts.at("description"));
  const detail::Pixels pixels = detail::make_pixels(frame);
  write_file(out / "rgb.bin", pixels.values.data(), pixels.values.size());
  write_tensor(out / "tensor.bin", detail::make_tensor(pixels, described));
}

Tensor read_tensor(const fs::path& folder, const Json& facts) {
  const auto* type = detail::find_type(facts.at("dtype").text());
  std::vector<std::int64_t> shape;
  for (const Json& size : facts.at("shape").items()) shape.push_back(size.integer());
  Tensor tensor = make_tensor(type->type, shape);
  const std::string bytes = read_file(folder / facts.at("path").text());
  if (bytes.size() != tensor.bytes.size()) throw std::runtime_error("another size");
  std::copy_n(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), tensor.bytes.begin());
  return tensor;
}

std::vector<std::string> read_texts(const Json& list) {
  std::vector<std::string> texts;
  for (const Json& each : list.items()) texts.push_back(each.text());
  return texts;
}

AnswerOptions read_options(const Json* given) {
  AnswerOptions options;
  if (given == nullptr) return options;
  if (const Json* score = given->find("score")) options.score = score->number();
  if (const Json* iou = given->find("iou")) options.iou = iou->number();
  if (const Json* most = given->find("most")) options.most = most->integer();
  if (const Json* top = given->find("top")) options.top = top->integer();
  if (const Json* allow = given->find("allow")) options.allow = read_texts(*allow);
  return options;
}

Answer make_answer(const fs::path& folder, const Json& facts) {
  std::vector<Tensor> tensors;
  std::vector<TensorView> outputs;
  for (const Json& output : facts.at("outputs").items())
    tensors.push_back(read_tensor(folder, output));
  for (const Tensor& tensor : tensors) outputs.push_back(tensor.view());
  const std::vector<std::string> labels = read_texts(facts.at("labels"));
  const AnswerOptions options = read_options(facts.find("options"));
  detail::Given given;
  std::optional<detail::Placement> place;
  if (const Json* image = facts.find("image")) {
    place = detail::find_placement(image->at("width").integer(), image->at("height").integer(),
                                   image->at("description").at("resize"));
    given.place = &*place;
  }
  Tensor mask;
  TensorView mask_view;
  if (const Json* described = facts.find("mask")) {
    mask = read_tensor(folder, *described);
    mask_view = mask.view();
    given.mask = &mask_view;
  }
  detail::Table priors;
  if (const Json* text = facts.find("priors")) {
    priors = detail::read_priors(text->text());
    given.priors = &priors;
  }
  return detail::make_answer(outputs, {facts.at("description"), labels, options}, given);
}

void write_answer(const fs::path& folder, const fs::path& out, const Json& facts) {
  const std::string text = to_json(make_answer(folder, facts));
  write_file(out / "found.json", text.data(), text.size());
}

std::string read_tokenizer_error(const Json& tokenizer) {
  try {
    const detail::WordPiece taken(tokenizer);
  } catch (const detail::TokenizerError& error) {
    return error.what();
  } catch (const Error& error) {
    return error.what();
  }
  return "it is taken";
}

void write_text(const fs::path& path, const std::string& text) {
  write_file(path, text.data(), text.size());
}

std::string format_ids(const std::vector<std::int64_t>& ids) {
  std::string list;
  for (const std::int64_t id : ids) list += (list.empty() ? "" : ", ") + std::to_string(id);
  return "[" + list + "]";
}

void write_tokens(const fs::path& folder, const fs::path& out, const Json& facts) {
  const detail::WordPiece pieces(Json::parse(read_file(folder / "tokenizer.json"), "tokenizer"));
  const auto length = static_cast<std::size_t>(facts.at("length").integer());
  std::string list;
  for (const Json& text : facts.at("texts").items()) {
    const detail::Encoding made =
        pieces.encode(text.at("text").text(), length, facts.at("pad").boolean());
    list += (list.empty() ? "[" : ", ") + ("{\"input_ids\": " + format_ids(made.input_ids)) +
            ", \"attention_mask\": " + format_ids(made.attention_mask) +
            ", \"token_type_ids\": " + format_ids(made.token_type_ids) + "}";
  }
  write_text(out / "found.json", list + "]");
}

char find_kind(char32_t c) {
  if (detail::is_punctuation(c)) return 'p';
  if (detail::find_range(detail::kNonspacing, c) != nullptr) return 'm';
  return detail::find_range(detail::kOthers, c) != nullptr ? 'o' : '-';
}

void write_characters(const fs::path&, const fs::path& out, const Json& facts) {
  const std::u32string text = detail::split_characters(facts.at("text").text());
  std::u32string lowered;
  std::string kinds;
  for (const char32_t c : text) {
    detail::append_lower(lowered, c);
    kinds += find_kind(c);
  }
  const auto format = [](const std::u32string& characters) {
    return detail::format_json_text(detail::join_characters(characters));
  };
  write_text(out / "found.json", "{\"nfd\": " + format(detail::decompose(text)) +
                                     ", \"nfc\": " + format(detail::compose(text)) +
                                     ", \"lower\": " + format(lowered) + ", \"kinds\": \"" + kinds +
                                     "\"}");
}

void write_damaged(const fs::path&, const fs::path& out, const Json& facts) {
  const std::string said = read_tokenizer_error(facts.at("tokenizer"));
  write_text(out / "found.json", said == "it is taken" ? "null" : detail::format_json_text(said));
}

void write_in_model(const fs::path&, const fs::path& out, const Json& facts) {
  const detail::InModel in_model(facts.at("tokenizer"));
  std::string list;
  for (const Json& text : facts.at("texts").items()) {
    std::string made;
    try {
      made = in_model.encode_text(text.text());
    } catch (const Error& error) {
      made = std::string("error: ") + error.what();
    }
    list += (list.empty() ? "[" : ", ") + detail::format_json_text(made);
  }
  write_text(out / "found.json", list + "]");
}

void write_sound(const fs::path& folder, const fs::path& out, const Json& facts) {
  const std::string data = read_file(folder / "sound.wav");
  const auto described = detail::SoundDescription::read(facts.at("sound"));
  const Type type = detail::find_type(facts.at("dtype").text())->type;
  const auto rank = static_cast<std::size_t>(facts.at("rank").integer());
  std::string found;
  try {
    Tensor tensor = detail::make_sound(data, described, type, rank);
    if (type != Type::int16) tensor = detail::convert_floats(std::move(tensor), type, "sound");
    found = detail::format_shape(tensor.shape) + "\n";
    found.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
  } catch (const Error& error) {
    found = std::string(error.what()) + "\n" + error.hint();
  }
  write_text(out / "found.bin", found);
}

void write_refusal(const fs::path& folder, const fs::path& out, const Json& facts) {
  std::string text = "it is taken";
  if (fs::exists(folder / "tokenizer.json")) {
    const Json tokenizer = Json::parse(read_file(folder / "tokenizer.json"), "tokenizer");
    write_text(out / "found.txt", read_tokenizer_error(tokenizer));
    return;
  }
  try {
    if (facts.find("planes") != nullptr)
      detail::make_pixels(read_frame(folder, facts).frame);
    else
      make_answer(folder, facts);
  } catch (const Error& error) {
    text = error.what();
  }
  write_file(out / "found.txt", text.data(), text.size());
}

/// Frames that cannot be are refused, without an overflow on the way there.
void check_frames() {
  constexpr std::int64_t longest = std::numeric_limits<std::int64_t>::max();
  const std::uint8_t pixel[4] = {};
  for (const std::int64_t side : {longest, longest / 2, std::int64_t{1} << 41, std::int64_t{-1}}) {
    for (const auto& [width, height, stride] :
         {std::array{side, side, std::int64_t{0}}, std::array{side, std::int64_t{1}, side},
          std::array{std::int64_t{9}, std::int64_t{9}, side}}) {
      try {
        detail::make_pixels(make_frame(pixel, width, height, Format::rgba, stride));
      } catch (const Error&) {
        continue;
      }
      throw std::runtime_error("a frame that cannot be is taken");
    }
  }
}

}  // namespace

int main(int, char** argv) {
  check_frames();
  using Write = void (*)(const fs::path&, const fs::path&, const Json&);
  const std::pair<const char*, Write> kinds[] = {{"images", write_image},
                                                 {"frames", write_frame},
                                                 {"answers", write_answer},
                                                 {"refused", write_refusal},
                                                 {"characters", write_characters},
                                                 {"wordpiece", write_tokens},
                                                 {"tokenizers", write_damaged},
                                                 {"in_model", write_in_model},
                                                 {"sounds", write_sound}};
  for (const auto& [kind, write] : kinds) {
    if (!fs::exists(fs::path(argv[1]) / kind)) continue;
    for (const auto& entry : fs::directory_iterator(fs::path(argv[1]) / kind)) {
      const fs::path out = fs::path(argv[2]) / kind / entry.path().filename();
      fs::create_directories(out);
      const std::string facts = read_file(entry.path() / "case.json");
      write(entry.path(), out, facts.empty() ? Json() : Json::parse(facts, "case.json"));
    }
  }
}
