// Makes what tests/mobile/vectors.py writes of pictures and frames: a file for each case.
//
//     pictures CASES OUT

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "edgepack/detail/frames.hpp"
#include "edgepack/detail/images.hpp"

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

void write_frame(const fs::path& folder, const fs::path& out, const Json& facts) {
  Frame frame;
  const std::string& format = facts.at("format").text();
  for (int k = 0; k < 6; ++k) {
    if (format == detail::kFormats[k]) frame.format = static_cast<Format>(k);
  }
  frame.width = facts.at("width").integer();
  frame.height = facts.at("height").integer();
  frame.rotation = static_cast<int>(facts.at("rotation").integer());
  frame.matrix = facts.at("matrix").text() == "bt601" ? Matrix::bt601 : Matrix::bt709;
  frame.range = facts.at("range").text() == "full" ? Range::full : Range::video;
  std::vector<std::string> buffers;
  for (const Json& plane : facts.at("planes").items())
    buffers.push_back(read_file(folder / plane.at("path").text()));
  for (std::size_t k = 0; k < buffers.size(); ++k) {
    const Json& plane = facts.at("planes").items()[k];
    const auto offset = static_cast<std::size_t>(plane.at("offset").integer());
    frame.planes.push_back({reinterpret_cast<const std::uint8_t*>(buffers[k].data()) + offset,
                            buffers[k].size() - offset, plane.at("row_stride").integer(),
                            plane.at("pixel_stride").integer()});
  }
  const auto described = detail::ImageDescription::read(facts.at("description"));
  const detail::Pixels pixels = detail::make_pixels(frame);
  write_file(out / "rgb.bin", pixels.values.data(), pixels.values.size());
  write_tensor(out / "tensor.bin", detail::make_tensor(pixels, described));
  const auto place = detail::find_placement(pixels.width, pixels.height, described.resize);
  const detail::Pixels averages = detail::make_pixels(frame, detail::find_factor(place));
  write_tensor(out / "prescaled.bin",
               detail::make_tensor(averages, described, pixels.width, pixels.height));
}

}  // namespace

int main(int, char** argv) {
  for (const std::string kind : {"images", "frames"}) {
    for (const auto& entry : fs::directory_iterator(fs::path(argv[1]) / kind)) {
      const fs::path out = fs::path(argv[2]) / kind / entry.path().filename();
      fs::create_directories(out);
      const Json facts = Json::parse(read_file(entry.path() / "case.json"), "case.json");
      (kind == "images" ? write_image : write_frame)(entry.path(), out, facts);
    }
  }
}
