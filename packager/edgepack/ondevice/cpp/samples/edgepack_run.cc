// Answers pictures, texts, sounds and tensors from files or stdin, a line of JSON for each, which is
// there before the next one is read.
//
//     edgepack_run [OPTION VALUE ...] BUNDLE [FILE ...]
//
//     edgepack_run dist/classifier-1.0.0-linux-aarch64 photo.ppm
//     djpeg photo.jpg | edgepack_run dist/classifier-1.0.0-linux-aarch64
//     edgepack_run --text "turn the lights on" dist/commands-1.0.0-linux-aarch64
//     ffmpeg -i /dev/video0 -f image2pipe -c:v ppm - | edgepack_run dist/detector-1.0.0-linux-aarch64
//
// A FILE is a picture as netpbm writes it (.ppm or .pgm of 8 bits, several behind each other), a
// tensor as numpy writes it (.npy), a sound (.wav), a text in each line (a name that ends in .txt),
// or a picture's own file where the model decodes it; - and no FILE is stdin. With several inputs it
// is INPUT=FILE for each, with one thing in it, which make one answer.
//
// --runtime LIBRARY   the libonnxruntime.so to use
// --variant ID        only this variant
// --text TEXT         a text to answer, before the files; may be given several times
// --score SHARE       the least score of objects and classes
// --top COUNT         so many classes, at most
//
// Exit codes: 0; 1 the bundle does not open, or an input is not taken; 2 the arguments are wrong.
// What is wrong stands on stderr.

#include <edgepack/edgepack.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <fstream>
#include <ios>
#include <iostream>
#include <istream>
#include <iterator>
#include <limits>
#include <list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace {

using edgepack::Code;
using edgepack::Error;

struct Arguments {
  edgepack::Options options;
  edgepack::AnswerOptions answers;
  std::string bundle;
  std::vector<std::string> texts;
  std::vector<std::string> files;
};

Error make_usage_error(const std::string& what) {
  return Error(Code::usage, what, "edgepack_run [--runtime LIBRARY] BUNDLE [FILE ...]");
}

double read_number(const std::string& text) {
  return edgepack::detail::Json::parse(text, "the option").number();
}

Arguments read_arguments(const std::vector<std::string>& words) {
  Arguments arguments;
  std::size_t at = 0;
  for (; at < words.size() && words[at].rfind("--", 0) == 0; at += 2) {
    if (at + 1 == words.size()) throw make_usage_error(words[at] + " has no value");
    const std::string& value = words[at + 1];
    if (words[at] == "--runtime")
      arguments.options.runtime = value;
    else if (words[at] == "--variant")
      arguments.options.variant = value;
    else if (words[at] == "--text")
      arguments.texts.push_back(value);
    else if (words[at] == "--score")
      arguments.answers.score = read_number(value);
    else if (words[at] == "--top")
      arguments.answers.top = edgepack::detail::Json::parse(value, "the option").integer();
    else
      throw make_usage_error("there is no option " + words[at]);
  }
  if (at == words.size()) throw make_usage_error("no bundle is named");
  arguments.bundle = words[at];
  arguments.files.assign(words.begin() + static_cast<std::ptrdiff_t>(at) + 1, words.end());
  if (arguments.files.empty() && arguments.texts.empty()) arguments.files.push_back("-");
  return arguments;
}

Error make_file_error(const std::string& path, const std::string& what) {
  return Error(Code::bad_input, path + " " + what, "see the head of edgepack_run.cc");
}

/// Reads a picture of netpbm behind its first two bytes: width, height and the highest value, with
/// spaces and comments between them, and the pixels, into `bytes`. Source: netpbm's manual, ppm(5).
edgepack::Frame read_netpbm(std::istream& from, bool is_gray, std::string& bytes,
                            const std::string& path) {
  std::int64_t numbers[3] = {};
  for (std::int64_t& number : numbers) {
    while ((from >> std::ws).peek() == '#')
      from.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
    from >> number;
  }
  from.get();
  const auto [width, height, highest] = numbers;
  constexpr std::int64_t most = 10000000;
  if (!from || std::min(width, height) < 1 || std::max(width, height) > most || highest != 255)
    throw make_file_error(path, "has no 8-bit picture");
  const auto count = static_cast<std::uint64_t>(width * height * (is_gray ? 1 : 3));
  constexpr std::size_t piece = 1 << 20;  // as a header may lie about what follows
  for (std::size_t have = 0; have < count; have = bytes.size()) {
    bytes.resize(static_cast<std::size_t>(std::min<std::uint64_t>(count, have + piece)));
    from.read(&bytes[have], static_cast<std::streamsize>(bytes.size() - have));
    if (!from) throw make_file_error(path, "ends within a picture");
  }
  return edgepack::make_frame(reinterpret_cast<const std::uint8_t*>(bytes.data()), width, height,
                              is_gray ? edgepack::Format::gray : edgepack::Format::rgb);
}

/// Reads a tensor in C order. Source: numpy.lib.format, versions 1 to 3.
edgepack::TensorView read_npy(const std::string& bytes, const std::string& path) {
  const std::size_t wide = bytes.size() > 6 && bytes[6] != 1 ? 4 : 2;
  if (bytes.size() < 8 + wide) throw make_file_error(path, "ends within its header");
  std::size_t length = 0;
  for (std::size_t k = wide; k-- > 0;)
    length = length << 8 | static_cast<unsigned char>(bytes[8 + k]);
  const std::size_t begin = 8 + wide;
  if (length > bytes.size() - begin) throw make_file_error(path, "ends within its header");
  const std::string header = bytes.substr(begin, length);
  const auto find_behind = [&](const std::string& key) {
    const std::size_t found = header.find(key);
    if (found == std::string::npos) throw make_file_error(path, "has no " + key);
    return found + key.size();
  };
  if (header.compare(find_behind("'fortran_order': "), 5, "False") != 0)
    throw make_file_error(path, "is in Fortran's order");
  const std::size_t quoted = find_behind("'descr': '");
  const std::string descr = header.substr(quoted, header.find('\'', quoted) - quoted);
  constexpr const char* types[][2] = {
      {"<f4", "float32"}, {"|u1", "uint8"},   {"|i1", "int8"},  {"<u2", "uint16"},
      {"<i2", "int16"},   {"<i4", "int32"},   {"<i8", "int64"}, {"|b1", "bool"},
      {"<f2", "float16"}, {"<f8", "float64"}, {"<u4", "uint32"}, {"<u8", "uint64"}};
  const edgepack::detail::TypeFacts* facts = nullptr;
  for (const auto& [name, type] : types) {
    if (descr == name) facts = edgepack::detail::find_type(type);
  }
  if (facts == nullptr) throw make_file_error(path, "has values of " + descr);
  edgepack::TensorView view{facts->type, {}, bytes.data() + begin + length, 0};
  std::size_t at = find_behind("'shape': (");
  while (at < header.size() && header[at] != ')') {
    const std::size_t first = at;
    std::int64_t size = 0;
    for (; at < header.size() && header[at] >= '0' && header[at] <= '9' && size < (1LL << 40); ++at)
      size = size * 10 + (header[at] - '0');
    if (at == first) throw make_file_error(path, "has no shape");
    view.shape.push_back(size);
    while (at < header.size() && (header[at] == ',' || header[at] == ' ')) ++at;
  }
  view.bytes = bytes.size() - begin - length;
  if (view.bytes != edgepack::detail::count_bytes(view.type, view.shape))
    throw make_file_error(path, "has another number of bytes than its shape");
  return view;
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

/// What is in a file or in stdin, one thing after the other.
class Source {
 public:
  explicit Source(std::string path) : path_(std::move(path)) {
    if (path_ == "-") return;
    file_.open(path_, std::ios::binary);
    if (!file_) throw Error(Code::not_found, path_ + " cannot be opened", "see its name and mode");
  }

  /// The next, whose bytes are there until another one is read; none at the end.
  std::optional<edgepack::Item> read() {
    std::istream& from = path_ == "-" ? std::cin : file_;
    try {
      from.exceptions(std::ios::badbit);
      return read_from(from);
    } catch (const std::ios_base::failure& failure) {
      throw Error(Code::not_found, path_ + " cannot be read: " + failure.code().message(),
                  "name a file, or - for stdin");
    }
  }

 private:
  std::optional<edgepack::Item> read_from(std::istream& from) {
    if (ends_with(path_, ".txt")) {
      if (!std::getline(from, bytes_)) return std::nullopt;
      if (!bytes_.empty() && bytes_.back() == '\r') bytes_.pop_back();
      return bytes_;
    }
    // Behind a picture may be another one, or white space.
    const bool is_behind = !bytes_.empty();
    if (is_behind) from >> std::ws;
    char head[2] = {};
    from.read(head, 2);
    if (from.gcount() == 0) return std::nullopt;
    bytes_.assign(head, static_cast<std::size_t>(from.gcount()));
    if (bytes_ == "P5" || bytes_ == "P6") return read_netpbm(from, bytes_ == "P5", bytes_, path_);
    if (is_behind) throw make_file_error(path_, "has no picture behind a picture");
    bytes_.append(std::istreambuf_iterator<char>(from), {});
    if (bytes_.compare(0, 6, "\x93NUMPY") == 0) return read_npy(bytes_, path_);
    return edgepack::FileBytes{bytes_.data(), bytes_.size()};
  }

  std::string path_;
  std::ifstream file_;
  std::string bytes_;
};

void answer(const edgepack::Model& model, const edgepack::Items& items,
            const edgepack::AnswerOptions& options) {
  std::string line;
  for (const auto& [name, found] : model.predict(items, options)) {
    line += (line.empty() ? "" : ", ") + edgepack::detail::format_json_text(name) + ": " +
            edgepack::to_json(found);
  }
  std::cout << "{" << line << "}\n" << std::flush;
}

void run(const std::vector<std::string>& words) {
  const Arguments arguments = read_arguments(words);
  const edgepack::Model model = edgepack::Model::open(arguments.bundle, arguments.options);
  for (const edgepack::PassedOver& each : model.passed_over())
    std::cerr << each.variant << " is passed over: " << each.reason << "\n";
  std::cerr << "running " << model.variant() << " on onnxruntime " << model.runtime_version() << "\n";
  for (const std::string& text : arguments.texts)
    answer(model, {{model.only_input(), text}}, arguments.answers);
  std::list<Source> sources;  // an item is in the bytes of its source
  edgepack::Items items;
  for (const std::string& file : arguments.files) {
    const std::size_t equals = file.find('=');
    Source& source = sources.emplace_back(file.substr(equals + 1));
    if (equals == std::string::npos) {
      while (const std::optional<edgepack::Item> item = source.read())
        answer(model, {{model.only_input(), *item}}, arguments.answers);
      sources.pop_back();
      continue;
    }
    const std::string name = file.substr(0, equals);
    const std::optional<edgepack::Item> item = source.read();
    if (!item || source.read())
      throw make_file_error(file.substr(equals + 1), "is not one thing for the input " + name);
    if (!items.emplace(name, *item).second)
      throw make_usage_error("the input " + name + " is there twice");
  }
  if (!items.empty()) answer(model, items, arguments.answers);
}

}  // namespace

int main(int count, char** words) {
  // Else a stdin that cannot be read looks like one that ends.
  std::ios::sync_with_stdio(false);
  try {
    run({words + 1, words + count});
    return 0;
  } catch (const Error& error) {
    std::cerr << "error: " << error.what() << "\n  hint: " << error.hint() << "\n";
    return error.code() == Code::usage ? 2 : 1;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
}
