// A bundle's manifest, as far as a loader needs it, and the files of its folder.

#ifndef EDGEPACK_DETAIL_MANIFEST_HPP
#define EDGEPACK_DETAIL_MANIFEST_HPP

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "edgepack/detail/error.hpp"
#include "edgepack/detail/json.hpp"
#include "edgepack/detail/tensor.hpp"

namespace edgepack {

/// One dimension of an input or output: a fixed size, or a name, with which any size is taken.
struct Dimension {
  /// -1 where it has a name.
  std::int64_t size;
  /// Empty where it is fixed; `?` where it has no name of its own.
  std::string name;
};

/// One input or output of the model.
struct TensorSpec {
  std::string name;
  Type type;
  std::vector<Dimension> shape;
};

namespace detail {

constexpr std::int64_t kSchemaVersion = 1;

using Words = std::map<std::string, std::string>;
/// Sizes by symbolic dimension, in the order in which they are named to a user.
using Sizes = std::vector<std::pair<std::string, std::int64_t>>;

struct Bucket {
  Sizes dims;
  std::string model;
  std::string model_sha256;
};

struct Slice {
  std::string output;
  std::size_t axis;
  std::string dim;
};

/// A library that brings an execution provider, as a variant names it itself.
struct Plugin {
  std::string package;
  std::string library;
  std::optional<std::string> type;
  std::optional<std::string> vendor;
  /// All that the variant says of it.
  Json json;
};

struct Provider {
  std::string name;
  Words options;
  std::optional<Plugin> plugin;
};

/// Session options; what is not set stays onnxruntime's own.
struct Settings {
  int intra_op_num_threads = 0;
  std::string graph_optimization_level = "all";
  std::string execution_mode = "sequential";
  std::optional<int> inter_op_num_threads;
  std::optional<bool> enable_cpu_mem_arena;
  std::optional<bool> enable_mem_pattern;
  std::optional<int> log_severity_level;
  Words config;
};

struct Compiled {
  std::string hardware;
  std::string option;
  std::string model;
  std::string model_sha256;
};

struct Variant {
  std::string id;
  std::string model;
  std::string model_sha256;
  std::vector<Bucket> buckets;
  std::vector<Slice> slices;
  bool exact = false;
  std::vector<Provider> providers;
  /// The share of nodes that the first provider has to run; none where it has to run all.
  std::optional<double> placement;
  Settings session;
  std::vector<std::string> cpu_flags;
  bool needs_extensions = false;
  double min_sqnr_db = 0;
  /// Of inputs, the least and the greatest value that int8 was calibrated with.
  std::vector<std::pair<std::string, std::pair<double, double>>> input_ranges;
  std::vector<Compiled> compiled;
  /// The hardware that `model` is compiled for; empty where the provider takes the model itself.
  std::string compiled_for;
};

/// The channels of a golden output that are compared apart.
struct Quantities {
  std::int64_t size = 1;
  /// How many channels in a row have which quantity.
  std::vector<std::pair<std::int64_t, std::size_t>> runs = {{1, 0}};
  std::vector<double> extra_db = {0.0};
};

struct Palette {
  std::int64_t step;
  std::vector<std::size_t> sizes;
};

struct GoldenEntry {
  std::string name;
  std::string path;
  Type type;
  std::vector<std::int64_t> shape;
  std::size_t stride = 1;
  Quantities quantities;
  std::optional<Palette> palette;
};

struct GoldenSample {
  std::vector<GoldenEntry> inputs;
  std::map<std::string, std::vector<GoldenEntry>> outputs;
};

/// A file that is open; it is closed where it goes out of scope.
struct Descriptor {
  int number;
  explicit Descriptor(int of_number) : number(of_number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number >= 0) close(number);
  }
};

/// Reads a whole file of at most so many bytes, also where it has no size of its own.
///
/// Throws `Error`: not_found where it is not there, is no plain file, or cannot be read;
/// broken_bundle where it is longer.
inline std::string read_file(const std::string& path, std::size_t longest = kLongestJson) {
  const auto fail = [&path](const std::string& why) {
    return Error(Code::not_found, path + ": " + why,
                 "copy the bundle again, and let this user read it");
  };
  // Who opens a pipe would wait for its other end.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat found{};
  if (file.number < 0 || fstat(file.number, &found) != 0) throw fail(strerror(errno));
  if (!S_ISREG(found.st_mode)) throw fail("it is no plain file");
  std::string text;
  text.reserve(std::min(static_cast<std::size_t>(found.st_size), longest) + 1);
  char block[1 << 16];
  ssize_t size;
  while ((size = read(file.number, block, sizeof block)) > 0) {
    text.append(block, static_cast<std::size_t>(size));
    if (text.size() > longest)
      throw make_broken(path + " is longer than " + std::to_string(longest) + " bytes");
  }
  if (size < 0) throw fail(strerror(errno));
  return text;
}

/// The content of `manifest.json`, and the folder that it describes. Threads may share it.
class Manifest {
 public:
  /// Reads a bundle's manifest.
  ///
  /// Throws `Error`: not_found, broken_bundle, newer_schema, or usage where the folder is a bundle
  /// of several models.
  explicit Manifest(std::string folder) : folder_(std::move(folder)) {
    // As in Python, whose paths end without a slash.
    while (folder_.size() > 1 && folder_.back() == '/') folder_.pop_back();
    const std::string path = folder_ + "/manifest.json";
    try {
      text_ = read_file(path);
      json_ = Json::parse(text_, path);
    } catch (const Error& error) {
      throw Error(error.code(), folder_ + " is no complete bundle: " + error.what(), error.hint());
    }
    check_schema(path);
    name_ = json_.at("name").text();
    version_ = json_.at("version").text();
    inputs_ = read_specs(json_.at("inputs"));
    outputs_ = read_specs(json_.at("outputs"));
    for (const Json& each : json_.at("variants").items()) variants_.push_back(read_variant(each));
    for (const Json& each : json_.at("goldens").items()) goldens_.push_back(read_golden(each));
    if (variants_.empty() || goldens_.empty())
      throw make_broken(path + " has no variants, or no goldens");
    const Json* libraries = json_.find("custom_ops");
    if (libraries != nullptr) custom_ops_ = read_words(*libraries);
    if (const Json* sources = json_.find("provider_sources")) {
      for (const auto& [provider, source] : sources->members())
        about_[provider] = find_text(source, "about", "");
    }
  }

  const std::string& folder() const { return folder_; }
  /// All of it, for what describes inputs and outputs.
  const Json& json() const { return json_; }
  /// The bytes of `manifest.json`, whose SHA-256 names the bundle.
  const std::string& text() const { return text_; }
  const std::string& name() const { return name_; }
  const std::string& version() const { return version_; }
  const std::vector<TensorSpec>& inputs() const { return inputs_; }
  const std::vector<TensorSpec>& outputs() const { return outputs_; }
  const std::vector<Variant>& variants() const { return variants_; }
  const std::vector<GoldenSample>& goldens() const { return goldens_; }
  /// The libraries of custom operators by kind of machine, such as `linux-aarch64`.
  const Words& custom_ops() const { return custom_ops_; }

  /// Where a runtime with a provider is from, in words; empty where the manifest has none.
  std::string find_about(const std::string& provider) const {
    const auto found = about_.find(provider);
    return found == about_.end() ? "" : found->second;
  }

  /// Where a file of the bundle lies. Throws `Error` (broken_bundle): the path leads out of it.
  std::string find_path(const std::string& path) const {
    const std::string whole = "/" + path + "/";
    if (path.empty() || path[0] == '/' || whole.find("/../") != std::string::npos ||
        path.find('\0') != std::string::npos) {
      throw make_broken(folder_ + "/manifest.json names the file " + path);
    }
    return folder_ + "/" + path;
  }

  /// Reads one of the bundle's files. Throws `Error` (broken_bundle): it is not there, or longer
  /// than it may be.
  std::string read(const std::string& path, std::size_t longest = kLongestJson) const {
    try {
      return read_file(find_path(path), longest);
    } catch (const Error& error) {
      if (error.code() == Code::broken_bundle) throw;
      throw make_broken(error.what());
    }
  }

 private:
  static constexpr const char* kNewer = "use the files in cpp that came with the bundle";

  void check_schema(const std::string& path) const {
    const Json* version = json_.find("schema_version");
    const bool is_number = version != nullptr && version->kind() == Json::Kind::number;
    const double found = is_number ? version->number() : 0;
    if (found != static_cast<double>(kSchemaVersion)) {
      const std::string text = is_number ? std::to_string(version->integer()) : "None";
      throw Error(found > kSchemaVersion ? Code::newer_schema : Code::broken_bundle,
                  path + " has schema version " + text + ", this loader reads " +
                      std::to_string(kSchemaVersion),
                  kNewer);
    }
    const Json* parts = json_.find("parts");
    if (parts == nullptr) return;
    std::string names;
    for (const auto& each : parts->members()) names += (names.empty() ? "" : ", ") + each.first;
    throw Error(Code::usage, folder_ + " has several models (" + names + ")",
                "open one of them in its folder 'parts', or the whole from Python");
  }

  static std::optional<std::string> find_word(const Json& json, const char* name) {
    const Json* found = json.find(name);
    return found == nullptr ? std::nullopt : std::optional<std::string>(found->text());
  }

  static std::optional<bool> find_flag(const Json& json, const char* name) {
    const Json* found = json.find(name);
    return found == nullptr ? std::nullopt : std::optional<bool>(found->boolean());
  }

  static std::optional<int> find_small(const Json& json, const char* name, int most) {
    const Json* found = json.find(name);
    if (found == nullptr) return std::nullopt;
    const std::int64_t number = found->integer();
    if (number < 0 || number > most)
      throw make_broken(found->path() + " is not 0 to " + std::to_string(most));
    return static_cast<int>(number);
  }

  /// The items of a member that may be missing.
  static const Json::List& list_items(const Json& json, const char* name) {
    static const Json::List none;
    const Json* found = json.find(name);
    return found == nullptr ? none : found->items();
  }

  static std::size_t read_count(const Json& json, std::int64_t least) {
    const std::int64_t found = json.integer();
    if (found < least) throw make_broken(json.path() + " is less than " + std::to_string(least));
    return static_cast<std::size_t>(found);
  }

  static Words read_words(const Json& json) {
    Words words;
    for (const auto& [name, value] : json.members()) words[name] = value.text();
    return words;
  }

  static Type read_type(const Json& json) {
    const TypeFacts* found = find_type(json.text());
    if (found == nullptr) throw make_broken(json.path() + " is no type of tensors: " + json.text());
    return found->type;
  }

  static std::vector<TensorSpec> read_specs(const Json& json) {
    std::vector<TensorSpec> specs;
    std::set<std::string> names;
    for (const Json& each : json.items()) {
      TensorSpec spec{each.at("name").text(), read_type(each.at("dtype")), {}};
      for (const Json& dim : each.at("shape").items()) {
        const bool named = dim.kind() == Json::Kind::text;
        spec.shape.push_back(named ? Dimension{-1, dim.text()}
                                   : Dimension{static_cast<std::int64_t>(read_count(dim, 0)), ""});
      }
      if (!names.insert(spec.name).second)
        throw make_broken(json.path() + " has two of the name " + spec.name);
      specs.push_back(std::move(spec));
    }
    return specs;
  }

  static Variant read_variant(const Json& json) {
    Variant variant;
    variant.id = json.at("id").text();
    variant.model = json.at("model").text();
    variant.model_sha256 = json.at("model_sha256").text();
    for (const Json& each : list_items(json, "buckets"))
      variant.buckets.push_back(read_bucket(each));
    for (const Json& each : list_items(json, "slices")) {
      variant.slices.push_back(
          {each.at("output").text(), read_count(each.at("axis"), 0), each.at("dim").text()});
    }
    variant.exact = is_true(json, "exact");
    for (const Json& each : json.at("providers").items())
      variant.providers.push_back(read_provider(each));
    if (variant.providers.empty()) throw make_broken(json.at("providers").path() + " is empty");
    const Json& placement = json.at("placement");
    if (placement.kind() == Json::Kind::number) {
      variant.placement = placement.number();
    } else if (placement.text() != "all") {
      throw make_broken(placement.path() + " is neither all nor a share");
    }
    variant.session = read_settings(json.at("session"));
    const Json& requires_json = json.at("requires");
    for (const Json& flag : list_items(requires_json, "cpu"))
      variant.cpu_flags.push_back(flag.text());
    variant.needs_extensions = is_true(requires_json, "extensions");
    variant.min_sqnr_db = json.at("min_sqnr_db").number();
    const Json* ranges = json.find("input_ranges");
    for (const auto& [name, range] : ranges == nullptr ? Json::Object() : ranges->members()) {
      const Json::List& ends = range.items();
      if (ends.size() != 2) throw make_broken(range.path() + " is no pair");
      variant.input_ranges.emplace_back(name, std::pair(ends[0].number(), ends[1].number()));
    }
    const Json* compiled = json.find("compiled");
    // Where it is no list it says why there are none.
    if (compiled != nullptr && compiled->kind() == Json::Kind::list) {
      for (const Json& each : compiled->items()) {
        variant.compiled.push_back({each.at("hardware").text(), each.at("option").text(),
                                    each.at("model").text(), each.at("model_sha256").text()});
      }
    }
    return variant;
  }

  static Bucket read_bucket(const Json& json) {
    Bucket bucket{{}, json.at("model").text(), json.at("model_sha256").text()};
    for (const auto& [dim, size] : json.at("dims").members()) {
      bucket.dims.emplace_back(dim, static_cast<std::int64_t>(read_count(size, 1)));
    }
    return bucket;
  }

  static Provider read_provider(const Json& json) {
    Provider provider{json.at("name").text(), {}, std::nullopt};
    const Json* options = json.find("options");
    if (options != nullptr) provider.options = read_words(*options);
    const Json* plugin = json.find("plugin");
    if (plugin == nullptr) return provider;
    provider.plugin = Plugin{plugin->at("package").text(), plugin->at("library").text(),
                             std::nullopt, std::nullopt, *plugin};
    const Json* device = plugin->find("device");
    if (device == nullptr) return provider;
    provider.plugin->type = find_word(*device, "type");
    provider.plugin->vendor = find_word(*device, "vendor");
    return provider;
  }

  static Settings read_settings(const Json& json) {
    Settings settings;
    // As many as glibc's set of processors has.
    constexpr int most = 1024;
    settings.intra_op_num_threads = find_small(json, "intra_op_num_threads", most).value_or(0);
    settings.graph_optimization_level =
        find_text(json, "graph_optimization_level", settings.graph_optimization_level);
    settings.execution_mode = find_text(json, "execution_mode", settings.execution_mode);
    settings.inter_op_num_threads = find_small(json, "inter_op_num_threads", most);
    settings.enable_cpu_mem_arena = find_flag(json, "enable_cpu_mem_arena");
    settings.enable_mem_pattern = find_flag(json, "enable_mem_pattern");
    settings.log_severity_level = find_small(json, "log_severity_level", 4);
    const Json* config = json.find("config");
    if (config != nullptr) settings.config = read_words(*config);
    return settings;
  }

  static GoldenSample read_golden(const Json& json) {
    GoldenSample sample;
    for (const Json& each : json.at("inputs").items())
      sample.inputs.push_back(read_golden_entry(each));
    for (const auto& [variant, entries] : json.at("outputs").members()) {
      for (const Json& each : entries.items())
        sample.outputs[variant].push_back(read_golden_entry(each));
    }
    return sample;
  }

  static GoldenEntry read_golden_entry(const Json& json) {
    GoldenEntry entry{
        json.at("name").text(), json.at("path").text(), read_type(json.at("dtype")), {}, 1, {}, {}};
    for (const Json& size : json.at("shape").items()) {
      entry.shape.push_back(static_cast<std::int64_t>(read_count(size, 0)));
    }
    try {
      static_cast<void>(count_bytes(entry.type, entry.shape));
    } catch (const Error& error) {
      throw make_broken(json.at("shape").path() + ": " + error.what());
    }
    const Json* stride = json.find("stride");
    if (stride != nullptr) entry.stride = read_count(*stride, 1);
    const Json* extra = json.find("extra_db");
    if (extra != nullptr) entry.quantities.extra_db = {extra->number()};
    const Json* quantities = json.find("quantities");
    if (quantities != nullptr)
      entry.quantities = read_quantities(*quantities, count_values(entry.shape));
    const Json* palette = json.find("palette");
    if (palette != nullptr) {
      entry.palette = Palette{static_cast<std::int64_t>(read_count(palette->at("step"), 1)), {}};
      for (const Json& size : palette->at("sizes").items())
        entry.palette->sizes.push_back(read_count(size, 1));
    }
    return entry;
  }

  static Quantities read_quantities(const Json& json, std::size_t values) {
    Quantities found{static_cast<std::int64_t>(read_count(json.at("size"), 1)), {}, {}};
    for (const Json& each : json.at("extra_db").items()) found.extra_db.push_back(each.number());
    const std::size_t most = std::max<std::size_t>(values, 1 << 16);
    std::size_t channels = 0;
    for (const Json& each : json.at("runs").items()) {
      const Json::List& run = each.items();
      if (run.size() != 2) throw make_broken(each.path() + " is no pair");
      const std::size_t number = read_count(run[1], 0);
      if (number >= found.extra_db.size()) throw make_broken(each.path() + " is of no quantity");
      found.runs.emplace_back(run[0].integer(), number);
      channels += read_count(run[0], 0);
      if (channels > most) throw make_broken(json.path() + " has more channels than values");
    }
    if (channels == 0) throw make_broken(json.path() + " has no channels");
    return found;
  }

  std::string folder_;
  std::string text_;
  Json json_;
  std::string name_;
  std::string version_;
  std::vector<TensorSpec> inputs_;
  std::vector<TensorSpec> outputs_;
  std::vector<Variant> variants_;
  std::vector<GoldenSample> goldens_;
  Words custom_ops_;
  Words about_;
};

}  // namespace detail
}  // namespace edgepack

#endif
