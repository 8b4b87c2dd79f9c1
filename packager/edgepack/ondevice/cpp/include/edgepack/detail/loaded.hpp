// A bundle's model: the first variant that works on this machine, proven by golden samples.

#ifndef EDGEPACK_DETAIL_LOADED_HPP
#define EDGEPACK_DETAIL_LOADED_HPP

#include <stdlib.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "edgepack/detail/caches.hpp"
#include "edgepack/detail/counters.hpp"
#include "edgepack/detail/error.hpp"
#include "edgepack/detail/goldens.hpp"
#include "edgepack/detail/json.hpp"
#include "edgepack/detail/manifest.hpp"
#include "edgepack/detail/meaning.hpp"
#include "edgepack/detail/ort.hpp"
#include "edgepack/detail/sessions.hpp"
#include "edgepack/detail/shapes.hpp"
#include "edgepack/detail/tensor.hpp"
#include "edgepack/detail/text.hpp"

namespace edgepack {

/// How a bundle is opened; an empty text leaves the choice to the library.
struct Options {
  /// The onnxruntime to use: the path of its libonnxruntime.so. By default the one in the bundle's
  /// `cpp/lib`; else the one that the process has loaded; else what the system's linker finds.
  std::string runtime;
  /// Use only this variant.
  std::string variant;
  /// Where providers keep engines and compiled models. By default where the Python loader has them.
  std::string cache;
  /// The library of onnxruntime-extensions, for variants that need it.
  std::string extensions;
  /// By execution provider that is no part of onnxruntime, the library of its plugin.
  std::map<std::string, std::string> plugins;
  /// The folder in which inferences, times and errors are counted, see docs/field.md. By default
  /// that of the environment variable EDGEPACK_STATS; without it, and with an empty text, nothing
  /// is counted.
  std::optional<std::string> stats;
};

/// A variant that is not used, or a compiled model of the one in use, and why.
struct PassedOver {
  std::string variant;
  std::string reason;
};

namespace detail {

/// A folder of its own under the system's folder for temporary files; removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::error_code none;
    std::string pattern =
        (std::filesystem::temp_directory_path(none) / "edgepack-profile-XXXXXX").string();
    if (none || mkdtemp(pattern.data()) == nullptr)
      throw Refused("there is no folder for onnxruntime's profile: " + pattern);
    path_ = pattern;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    try {
      std::error_code none;
      std::filesystem::remove_all(path_, none);
    } catch (const std::bad_alloc&) {  // it stays, as where it cannot be removed
    }
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Returns the provider of each node in a profile that onnxruntime wrote.
///
/// Source: node events have cat "Node", a name that ends in "_kernel_time", and args.provider
/// (onnxruntime 1.31.1, observed).
inline std::vector<std::string> list_profiled(const std::string& path) {
  constexpr std::string_view suffix = "_kernel_time";
  const Json events = Json::parse(read_file(path), path);
  std::map<std::pair<std::string, std::string>, std::string> nodes;
  for (const Json& event : events.items()) {
    const Json* kind = event.find("cat");
    const Json* name = event.find("name");
    if (kind == nullptr || name == nullptr || kind->text() != "Node" ||
        name->text().size() < suffix.size())
      continue;
    const std::string& text = name->text();
    if (text.compare(text.size() - suffix.size(), suffix.size(), suffix) != 0) continue;
    const Json& facts = event.at("args");
    const Json* index = facts.find("node_index");
    nodes.emplace(std::pair(index == nullptr ? "" : index->text(), text),
                  facts.at("provider").text());
  }
  std::vector<std::string> providers;
  for (const auto& each : nodes) providers.push_back(each.second);
  return providers;
}

/// One variant of a bundle, proven on this machine. Threads may share it.
class Loaded {
 public:
  /// Opens the first variant that works, see `Model::open`.
  static std::shared_ptr<const Loaded> open(const std::string& folder, const Options& options) {
    std::shared_ptr<Loaded> loaded(new Loaded(folder));
    const Manifest& manifest = loaded->manifest_;
    const Sessions sessions(Runtime::open(options.runtime, manifest.folder()), manifest,
                            options.cache, options.extensions, options.plugins);
    std::vector<PassedOver> passed_over;
    for (const Variant& variant : list_variants(manifest, options.variant)) {
      try {
        sessions.check(variant);
      } catch (const Refused& refusal) {
        passed_over.push_back({variant.id, refusal.what()});
        continue;
      }
      for (const Variant& each : list_compiled(variant)) {
        try {
          loaded->attempt(sessions, each);
          loaded->passed_over_ = std::move(passed_over);
          loaded->start_counting(options.stats);
          return loaded;
        } catch (const Refused& refusal) {
          passed_over.push_back(
              {each.compiled_for.empty() ? each.id : each.id + " compiled for " + each.compiled_for,
               refusal.what()});
        }
      }
    }
    std::string text = "no variant of " + manifest.folder() + " works on this machine:";
    for (const PassedOver& each : passed_over) text += "\n  " + each.variant + ": " + each.reason;
    throw Error(Code::refused, text, "the reasons say what each variant needs");
  }

  const Manifest& manifest() const { return manifest_; }
  const InputShapes& shapes() const { return shapes_; }
  const Variant& variant() const { return variant_; }
  const std::vector<PassedOver>& passed_over() const { return passed_over_; }
  double golden_sqnr_db() const { return golden_sqnr_db_; }
  const std::vector<Session>& sessions() const { return sessions_; }

  /// Returns the outputs by name, of inputs that are checked here. Throws `Error`, `OrtFailure`.
  Tensors run(TensorViews feed) const {
    Tensors masks;
    check(feed, masks);
    return infer_counted(feed);
  }

  /// See `Model::only_input`.
  std::string only_input() const {
    std::vector<std::string> needed;
    for (const TensorSpec& spec : manifest_.inputs()) {
      if (!shapes_.is_mask(spec.name) && !meaning_.is_made(spec.name)) needed.push_back(spec.name);
    }
    if (needed.size() == 1) return needed[0];
    throw Error(Code::usage, "the model needs several inputs: " + join(needed, ", "),
                "give each by its name");
  }

  /// Returns answers by output, of what inputs are made of. Throws `Error`, `OrtFailure`.
  Answers predict(const Items& items, const AnswerOptions& options) const {
    Feed feed = meaning_.make_feed(items);
    Tensors masks;
    check(feed.views, masks);
    return meaning_.make_answers(infer_counted(feed.views), feed, options);
  }

  /// Checks a caller's inputs and adds the masks that are missing, which are kept in `masks`.
  /// Throws `Error`.
  void check(TensorViews& feed, Tensors& masks) const {
    shapes_.check(feed);
    shapes_.add_masks(feed, masks);
  }

 private:
  explicit Loaded(const std::string& folder) : manifest_(folder), shapes_(manifest_), meaning_(manifest_) {}

  static std::vector<Variant> list_variants(const Manifest& manifest, const std::string& only) {
    std::vector<Variant> chosen;
    std::vector<std::string> ids;
    for (const Variant& each : manifest.variants()) {
      if (only.empty() || only == each.id) chosen.push_back(each);
      ids.push_back(each.id);
    }
    if (chosen.empty())
      throw Error(Code::usage,
                  "the bundle has no variant " + quote(only) + "; it has: " + join(ids, ", "),
                  "name one of these");
    return chosen;
  }

  /// Returns a variant once for each of its compiled models, and then itself.
  static std::vector<Variant> list_compiled(const Variant& variant) {
    std::vector<Variant> all;
    for (const Compiled& each : variant.compiled) {
      Variant compiled = variant;
      compiled.model = each.model;
      compiled.model_sha256 = each.model_sha256;
      compiled.compiled_for = each.hardware;
      compiled.providers[0].options[each.option] = each.hardware;
      all.push_back(std::move(compiled));
    }
    all.push_back(variant);
    return all;
  }

  /// Returns a variant once for each of its models.
  static std::vector<Variant> split_models(const Variant& variant) {
    if (variant.buckets.empty()) return {variant};
    std::vector<Variant> singles(variant.buckets.size(), variant);
    for (std::size_t k = 0; k < singles.size(); ++k) {
      singles[k].model = variant.buckets[k].model;
      singles[k].model_sha256 = variant.buckets[k].model_sha256;
    }
    return singles;
  }

  /// Opens and proves a variant. Throws `Refused`, or `Error` where golden inputs are not there.
  void attempt(const Sessions& opener, const Variant& variant) {
    variant_ = variant;
    sessions_.clear();
    for (const Variant& single : split_models(variant)) sessions_.push_back(opener.open(single));
    std::vector<Tensors> samples;
    for (const GoldenSample& each : manifest_.goldens())
      samples.push_back(read_goldens(manifest_, each.inputs));
    try {
      golden_sqnr_db_ = prove(0, infer(view_feed(samples[0])));
      prove_buckets(samples);
      for (std::size_t k = 1; k < samples.size(); ++k) {
        golden_sqnr_db_ = std::min(
            golden_sqnr_db_,
            prove(k, infer(view_feed(samples[k])), " for golden sample " + std::to_string(k + 1)));
      }
      check_share(opener, samples[0]);
    } catch (const OrtFailure& failure) {
      throw Refused(std::string("inference failed: ") + failure.what());
    } catch (const Error& error) {
      throw Refused(std::string("inference failed: ") + error.what());
    }
  }

  TensorViews view_feed(const Tensors& tensors) const {
    TensorViews views;
    for (const TensorSpec& spec : manifest_.inputs()) {
      const auto found = tensors.find(spec.name);
      if (found == tensors.end()) throw make_broken("a golden sample has no input " + spec.name);
      if (found->second.shape.size() != spec.shape.size())
        throw make_broken("a golden input is no " + spec.name);
      views[spec.name] = found->second.view();
    }
    return views;
  }

  /// Returns how near outputs are to the golden ones. Throws `Refused`: not near enough.
  double prove(std::size_t sample, const Tensors& outputs, const std::string& which = "") const {
    const double found_db = measure_sample_db(manifest_, sample, variant_.id, outputs);
    if (found_db < variant_.min_sqnr_db) {
      throw Refused("its output" + which + " is " + format_fixed(found_db, 1) +
                    " dB near the golden one, " + format_fixed(variant_.min_sqnr_db, 1) +
                    " dB are needed");
    }
    return found_db;
  }

  /// Runs a golden input, padded, in each session that it is not for, and compares. A bucket that
  /// is too small for every golden input runs with one that is cut to its size, whose outputs are
  /// unknown.
  void prove_buckets(const std::vector<Tensors>& samples) {
    for (std::size_t number = 0; number < variant_.buckets.size(); ++number) {
      const Sizes& bucket = variant_.buckets[number].dims;
      const auto is_held = [&](const Tensors& sample) {
        const Sizes sizes = shapes_.find_sizes(view_feed(sample));
        return variant_.exact ? are_equal(bucket, sizes) : can_hold(bucket, sizes);
      };
      const auto held = std::find_if(samples.begin(), samples.end(), is_held);
      if (held == samples.end()) {
        const Tensors resized = shapes_.resize(view_feed(samples[0]), bucket);
        static_cast<void>(infer_bucket(number, view_feed(resized)));
        continue;
      }
      const auto sample = static_cast<std::size_t>(held - samples.begin());
      const double found_db =
          prove(sample, infer_bucket(number, view_feed(*held)), " for " + format_sizes(bucket));
      if (sample == 0) golden_sqnr_db_ = std::min(golden_sqnr_db_, found_db);
    }
  }

  /// Throws `Refused` where the first provider has fewer of the nodes than the variant needs.
  void check_share(const Sessions& opener, const Tensors& sample) const {
    // A compiled model has a node for all that was compiled: there is nothing to count.
    if (!variant_.compiled_for.empty() || !is_cpu_limited(variant_)) return;
    std::vector<std::vector<std::string>> by_session;
    bool all_told = true;
    for (const Session& each : sessions_) {
      by_session.push_back(each.list_assigned());
      all_told = all_told && !by_session.back().empty();
    }
    if (!all_told) by_session = {profile(opener, sample)};
    const std::string& first = variant_.providers[0].name;
    const double least = variant_.placement.value_or(0);
    for (const std::vector<std::string>& found : by_session) {
      const auto count = static_cast<double>(std::count(found.begin(), found.end(), first));
      const double share = found.empty() ? 0.0 : count / static_cast<double>(found.size());
      if (share < least) {
        throw Refused(first + " runs " + format_fixed(share * 100, 0) +
                      "% of the nodes, at least " + format_fixed(least * 100, 0) +
                      "% are needed");
      }
    }
  }

  /// Runs a golden input under onnxruntime's profiler, in a session of its own, and returns each
  /// node's provider.
  std::vector<std::string> profile(const Sessions& opener, const Tensors& sample) const {
    const TensorViews feed = view_feed(sample);
    const std::size_t number =
        variant_.buckets.empty()
            ? 0
            : choose_bucket(variant_.buckets, shapes_.find_sizes(feed), variant_.exact);
    const TemporaryFolder folder;
    const Session session =
        opener.open(split_models(variant_)[number], (folder.path() / "profile").string());
    if (variant_.buckets.empty()) {
      static_cast<void>(session.run(feed, manifest_.outputs()));
    } else {
      const Tensors padded = shapes_.pad(feed, variant_.buckets[number].dims);
      static_cast<void>(session.run(view_feed(padded), manifest_.outputs()));
    }
    return list_profiled(session.end_profile());
  }

  /// Counts from now on what the model does, where that is asked for.
  void start_counting(const std::optional<std::string>& stats) {
    const std::string folder = stats ? *stats : find_variable("EDGEPACK_STATS");
    if (folder.empty()) return;
    About about{manifest_.name(), manifest_.version(), "", variant_.id, {},
                !variant_.input_ranges.empty()};
    about.release = compute_sha256(manifest_.text()).substr(0, 16);
    for (const PassedOver& each : passed_over_)
      about.passed_over.emplace_back(each.variant, each.reason);
    counters_ = Counters::open(folder, about, find_variable("EDGEPACK_STATS_TEXTFILES"));
  }

  /// Returns what `infer` does, and counts it where that is asked for.
  Tensors infer_counted(const TensorViews& feed) const {
    if (counters_ == nullptr) return infer(feed);
    if (counters_->is_check_due()) counters_->count_checked(find_outside(feed));
    return counters_->watch([&] { return infer(feed); });
  }

  /// Returns the inputs that have values beyond their ranges.
  std::vector<std::string> find_outside(const TensorViews& feed) const {
    std::vector<std::string> outside;
    for (const auto& [name, range] : variant_.input_ranges) {
      const auto found = feed.find(name);
      if (found == feed.end()) continue;
      const TensorView& view = found->second;
      const auto* values = static_cast<const std::byte*>(view.data);
      const std::size_t count = count_values(view.shape), size = get_facts(view.type).size;
      for (std::size_t k = 0; k < count; ++k) {
        const double value = load_number(values + k * size, view.type);
        if (range.first <= value && value <= range.second) continue;
        outside.push_back(name);  // NaN, too
        break;
      }
    }
    return outside;
  }

  /// Throws `OrtFailure`; `Error` (bad_input) where the inputs are larger than any model of this
  /// variant.
  Tensors infer(const TensorViews& feed) const {
    if (variant_.buckets.empty()) return sessions_[0].run(feed, manifest_.outputs());
    return infer_bucket(choose_bucket(variant_.buckets, shapes_.find_sizes(feed), variant_.exact),
                        feed);
  }

  /// Returns the outputs of the model for a bucket, which holds the inputs.
  Tensors infer_bucket(std::size_t number, const TensorViews& feed) const {
    const Tensors padded = shapes_.pad(feed, variant_.buckets[number].dims);
    Tensors outputs = sessions_[number].run(view_feed(padded), manifest_.outputs());
    cut_outputs(outputs, variant_.slices, shapes_.find_sizes(feed));
    return outputs;
  }

  Manifest manifest_;
  InputShapes shapes_;
  Meaning meaning_;
  Variant variant_;
  std::vector<Session> sessions_;
  std::vector<PassedOver> passed_over_;
  double golden_sqnr_db_ = 0;
  std::shared_ptr<Counters> counters_;
};

}  // namespace detail
}  // namespace edgepack

#endif
