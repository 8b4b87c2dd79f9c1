// Fuzzes a bundle without its models: the manifest, its goldens and lists, and what is made by them.
//
// An input is a manifest, a zero byte, and what all files hold that it names `data`.

#include <edgepack/detail/caches.hpp>
#include <edgepack/detail/goldens.hpp>
#include <edgepack/detail/meaning.hpp>
#include <edgepack/detail/shapes.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace {

using edgepack::Tensors;
using edgepack::TensorViews;
using edgepack::detail::GoldenEntry;
using edgepack::detail::GoldenSample;
using edgepack::detail::InputShapes;
using edgepack::detail::Manifest;
using edgepack::detail::Meaning;
using edgepack::detail::Variant;

/// A folder for the bundle in the folder in which the fuzzer runs.
struct Folder {
  std::string path = "bundle-" + std::to_string(getpid());
  Folder() {
    std::filesystem::create_directories(path + "/files");
    std::filesystem::create_symlink("../data", path + "/files/data");
  }
};

/// What follows is tried, too, where one step says that it cannot be done.
template <class Step>
void attempt(Step step) {
  try {
    step();
  } catch (const edgepack::Error&) {
  }
}

TensorViews view(const Tensors& tensors) {
  TensorViews views;
  for (const auto& [name, tensor] : tensors) views[name] = tensor.view();
  return views;
}

void fill_up(const InputShapes& shapes, const Variant& variant, const TensorViews& feed) {
  for (const edgepack::detail::Bucket& bucket : variant.buckets) {
    attempt([&] { static_cast<void>(shapes.resize(feed, bucket.dims)); });
    attempt([&] {
      const edgepack::detail::Sizes sizes = shapes.find_sizes(feed);
      const std::size_t chosen =
          edgepack::detail::choose_bucket(variant.buckets, sizes, variant.exact);
      Tensors padded = shapes.pad(feed, variant.buckets[chosen].dims);
      edgepack::detail::cut_outputs(padded, variant.slices, sizes);
    });
  }
}

void compare(const Manifest& manifest, const std::vector<GoldenEntry>& entries, Tensors& outputs) {
  for (const GoldenEntry& each : entries) {
    attempt([&] {
      edgepack::Tensor golden = edgepack::detail::read_golden(manifest, each);
      const std::size_t bytes = edgepack::detail::count_bytes(each.type, each.shape);
      if (bytes > (1 << 20)) return;
      edgepack::Tensor output = edgepack::make_tensor(each.type, each.shape);
      if (each.stride == 1) output = golden;
      static_cast<void>(edgepack::detail::measure_closeness_db(each, golden, output));
      outputs[each.name] = std::move(output);
    });
  }
}

void answer(const Manifest& manifest, const Meaning& meaning, const Tensors& outputs) {
  const std::vector<std::uint8_t> pixels(3 * 5 * 7, 99);
  edgepack::Items items;
  for (const edgepack::TensorSpec& spec : manifest.inputs())
    items[spec.name] = edgepack::make_frame(pixels.data(), 5, 7);
  edgepack::detail::Feed feed;
  attempt([&] { feed = meaning.make_feed(items); });
  for (const auto& [name, found] : meaning.make_answers(outputs, feed, {}))
    static_cast<void>(edgepack::to_json(found));
}

void read(const std::string& folder) {
  const Manifest manifest(folder);
  const InputShapes shapes(manifest);
  const Meaning meaning(manifest);
  for (const GoldenSample& sample : manifest.goldens()) {
    attempt([&] {
      const Tensors inputs = edgepack::detail::read_goldens(manifest, sample.inputs);
      TensorViews feed = view(inputs);
      Tensors masks;
      shapes.check(feed);
      shapes.add_masks(feed, masks);
      for (const Variant& each : manifest.variants()) fill_up(shapes, each, feed);
    });
    for (const auto& [variant, entries] : sample.outputs) {
      Tensors outputs;
      compare(manifest, entries, outputs);
      attempt([&] { answer(manifest, meaning, outputs); });
    }
  }
  for (const Variant& each : manifest.variants())
    attempt([&] { static_cast<void>(edgepack::detail::format_settings(each)); });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Folder folder;
  const std::string_view whole(reinterpret_cast<const char*>(data), size);
  const std::size_t end = std::min(whole.find('\0'), size);
  const auto write = [](const char* name, std::string_view bytes) {
    std::ofstream(folder.path + name, std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  };
  write("/manifest.json", whole.substr(0, end));
  write("/data", whole.substr(std::min(end + 1, size)));
  attempt([] { read(folder.path); });
  return 0;
}
