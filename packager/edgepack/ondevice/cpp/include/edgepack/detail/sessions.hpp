// Sessions of variants: their execution providers, settings and cache folders, as the manifest
// says.

#ifndef EDGEPACK_DETAIL_SESSIONS_HPP
#define EDGEPACK_DETAIL_SESSIONS_HPP

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "edgepack/detail/caches.hpp"
#include "edgepack/detail/error.hpp"
#include "edgepack/detail/json.hpp"
#include "edgepack/detail/manifest.hpp"
#include "edgepack/detail/ort.hpp"
#include "edgepack/detail/requirements.hpp"
#include "edgepack/detail/tensor.hpp"
#include "edgepack/detail/text.hpp"

namespace edgepack::detail {

inline constexpr const char* kCpu = "CPUExecutionProvider";
inline constexpr const char* kCuda = "CUDAExecutionProvider";
inline constexpr const char* kTensorRt = "TensorrtExecutionProvider";
inline constexpr const char* kOpenVino = "OpenVINOExecutionProvider";
inline constexpr const char* kAcl = "ACLExecutionProvider";
inline constexpr const char* kPrecise = "session.x64quantprecision";
inline constexpr const char* kStderr = "what onnxruntime wrote to stderr may say why";

/// Whether all nodes have to be on a provider other than the CPU.
inline bool is_cpu_forbidden(const Variant& variant) {
  return !variant.placement && variant.providers[0].name != kCpu;
}

/// Whether some of the nodes may be on the CPU, but not too many.
inline bool is_cpu_limited(const Variant& variant) {
  return variant.placement && variant.providers[0].name != kCpu;
}

/// Returns an error's beginning and end, where the cause is, as one line; cut between characters.
inline std::string shorten_error(const std::string& error) {
  constexpr std::size_t longest = 400, begin = 80;
  std::string text = join(split_words(error), " ");
  std::vector<std::size_t> starts;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if ((text[at] & 0xC0) != 0x80) starts.push_back(at);
  }
  if (starts.size() <= longest) return text;
  return text.substr(0, starts[begin]) + " ... " +
         text.substr(starts[starts.size() - longest + begin]);
}

/// Onnxruntime did not create the session.
class NotOpened : public Refused {
 public:
  using Refused::Refused;
};

/// One session of onnxruntime. Threads may share it.
class Session {
 public:
  Session(RuntimePointer runtime, Owned<api::Session> session)
      : runtime_(std::move(runtime)), session_(std::move(session)) {}

  const Runtime& runtime() const { return *runtime_; }
  api::Session* get() const { return session_.get(); }

  /// Returns the outputs by name. Throws `OrtFailure`.
  Tensors run(const TensorViews& feed, const std::vector<TensorSpec>& outputs) const {
    std::vector<const char*> given, wanted;
    std::vector<Owned<api::Value>> values;
    std::vector<const api::Value*> inputs;
    for (const auto& [name, view] : feed) {
      given.push_back(name.c_str());
      values.push_back(make_value(*runtime_, view));
      inputs.push_back(values.back().get());
    }
    for (const TensorSpec& spec : outputs) wanted.push_back(spec.name.c_str());
    std::vector<api::Value*> made(outputs.size(), nullptr);
    std::vector<Owned<api::Value>> owned;
    owned.reserve(made.size());  // what is made has its owner without more memory
    const api::RunOptions* no_options = nullptr;
    runtime_->call(api::Run, session_.get(), no_options, given.data(), inputs.data(), inputs.size(),
                   wanted.data(), wanted.size(), made.data());
    for (api::Value* each : made) owned.emplace_back(each, runtime_->function(api::ReleaseValue));
    Tensors found;
    for (std::size_t k = 0; k < outputs.size(); ++k)
      found[outputs[k].name] = copy_tensor(view_value(*runtime_, made[k]));
    return found;
  }

  /// Returns the provider of each node before fusion; empty where onnxruntime cannot report it.
  ///
  /// A profile counts what a provider compiled as one node, so this comes first. Source: there is
  /// no such call before 1.24, and it is empty for .ort models (1.31.1, observed).
  std::vector<std::string> list_assigned() const {
    std::vector<std::string> assigned;
    if (!runtime_->has(api::Session_GetEpGraphAssignmentInfo)) return assigned;
    const api::EpAssignedSubgraph* const* graphs = nullptr;
    std::size_t count = 0;
    runtime_->call(api::Session_GetEpGraphAssignmentInfo,
                   static_cast<const api::Session*>(session_.get()), &graphs, &count);
    for (std::size_t k = 0; k < count; ++k) {
      const char* provider = nullptr;
      const api::EpAssignedNode* const* nodes = nullptr;
      std::size_t size = 0;
      runtime_->call(api::EpAssignedSubgraph_GetEpName, graphs[k], &provider);
      runtime_->call(api::EpAssignedSubgraph_GetNodes, graphs[k], &nodes, &size);
      assigned.insert(assigned.end(), size, provider);
    }
    return assigned;
  }

  /// Ends the profile and returns its file.
  std::string end_profile() const {
    api::Allocator* allocator = nullptr;
    char* name = nullptr;
    runtime_->call(api::GetAllocatorWithDefaultOptions, &allocator);
    runtime_->call(api::SessionEndProfiling, session_.get(), allocator, &name);
    const auto release = [&](char* text) {
      runtime_->function(api::ReleaseStatus)(runtime_->function(api::AllocatorFree)(allocator, text));
    };
    const std::unique_ptr<char, decltype(release)> owned(name, release);
    return name;
  }

  /// Keeps the session as long as the process lasts.
  void keep() { static_cast<void>(session_.release()); }

 private:
  RuntimePointer runtime_;
  Owned<api::Session> session_;
};

/// Opens the sessions of a bundle's variants.
class Sessions {
 public:
  /// `extensions` and `plugins` name libraries: see `Options`.
  Sessions(RuntimePointer runtime, const Manifest& manifest, const std::string& cache,
           std::string extensions, Words plugins)
      : runtime_(std::move(runtime)),
        manifest_(manifest),
        cache_(find_cache_root(manifest.folder(), manifest.name(), cache)),
        extensions_(std::move(extensions)),
        plugins_(std::move(plugins)) {}

  /// Throws `Refused` unless this machine has the providers, CPU flags and libraries that a variant
  /// needs.
  void check(const Variant& variant) const {
    for (const Provider& each : variant.providers) {
      const std::string absence = explain_absence(each), about = manifest_.find_about(each.name);
      if (!absence.empty()) throw Refused(about.empty() ? absence : absence + ". " + about);
      if (!list_devices(each.name).empty()) static_cast<void>(find_device(each));
    }
    const std::set<std::string> flags = read_cpu_flags();
    std::set<std::string> missing;
    for (const std::string& flag : variant.cpu_flags) {
      if (flags.count(flag) == 0) missing.insert(flag);
    }
    if (!missing.empty())
      throw Refused("this CPU lacks " + join({missing.begin(), missing.end()}, ", "));
    if (variant.needs_extensions && extensions_.empty()) {
      throw Refused("it needs onnxruntime-extensions: name its library in Options::extensions");
    }
    register_custom_ops(
        make_owned(*runtime_, api::ReleaseSessionOptions, api::CreateSessionOptions).get());
  }

  /// Creates a session for a model of a variant; `profile` is where onnxruntime's profile goes, or
  /// empty.
  ///
  /// What a process that was killed left in the cache is no obstacle: if the session cannot be
  /// created with what lies there, it is created without.
  ///
  /// Throws `Refused`.
  Session open(const Variant& variant, const std::string& profile = "") const {
    check_words(variant);
    Variant filled = variant;
    const std::optional<std::filesystem::path> folder = find_cache_folder(variant);
    if (folder) add_cache(filled, *folder);
    const auto open_kept = [&] {
      Session session = open_filled(filled, profile);
      // When one of its sessions ends, a run of any other crashes. Source: onnxruntime 1.21.0 with
      // ACL 24.11.
      if (variant.providers[0].name == kAcl) session.keep();
      return session;
    };
    try {
      return open_kept();
    } catch (const NotOpened&) {
      std::error_code none;
      if (!folder || std::filesystem::is_empty(*folder, none) || none) throw;
      try {
        SetAside aside(*folder);
        Session session = open_kept();
        aside.keep();
        return session;
      } catch (const NotOpened&) {
      } catch (const std::filesystem::filesystem_error&) {  // a cache that is not ours to change
      }
      throw;
    }
  }

  /// Where a variant's engines lie; none where it keeps none. It is a folder for its model, the
  /// runtime, the hardware and its settings.
  std::optional<std::filesystem::path> find_cache_folder(const Variant& variant) const {
    const std::string settings = format_settings(variant);
    if (settings.find(kCache) == std::string::npos) return std::nullopt;
    const std::string& provider = variant.providers[0].name;
    std::string version;
    const std::vector<Device> devices = list_devices(provider);
    if (!devices.empty()) {
      const char* found = runtime_->function(api::GetKeyValue)(
          runtime_->function(api::EpDevice_EpMetadata)(devices[0]), "version");
      version = found == nullptr ? "" : found;
    } else if (provider == kTensorRt) {
      version = read_tensorrt_version();
    }
    return cache_ / variant.model_sha256 /
           (make_runtime_key(runtime_->version(), provider, version) + "_" +
            compute_sha256(settings).substr(0, 8));
  }

 private:
  /// A provider's device, of a plugin.
  using Device = const api::EpDevice*;

  std::string explain_absence(const Provider& provider) const {
    const std::vector<std::string> available = runtime_->list_providers();
    const bool is_here =
        std::find(available.begin(), available.end(), provider.name) != available.end();
    if ((is_here && !provider.plugin) || !list_devices(provider.name).empty()) return "";
    const auto plugin = plugins_.find(provider.name);
    if (plugin == plugins_.end())
      return provider.name + " is not in this onnxruntime (it has " + join(available, ", ") + ")";
    const std::string package = provider.plugin ? provider.plugin->package : plugin->second;
    register_plugin(provider.name, package, plugin->second);
    if (list_devices(provider.name).empty())
      return provider.name + " is in the plugin " + package +
             ", which lists no device on this machine";
    return "";
  }

  void register_plugin(const std::string& provider, const std::string& package,
                       const std::string& library) const {
    if (!runtime_->has(api::RegisterExecutionProviderLibrary)) {
      throw Refused("onnxruntime " + runtime_->version() + " does not take the plugin " + package);
    }
    try {
      runtime_->call(api::RegisterExecutionProviderLibrary, runtime_->env(), provider.c_str(),
                     library.c_str());
    } catch (const OrtFailure& failure) {
      const std::string said = failure.what();
      if (said.find("already registered") == std::string::npos)
        throw Refused("the plugin " + package + " does not load: " + shorten_error(said));
    }
  }

  /// Returns the devices that a plugin which is registered lists; none of a provider of
  /// onnxruntime's own.
  std::vector<Device> list_devices(const std::string& provider) const {
    std::vector<Device> found;
    if (plugins_.count(provider) == 0 || !runtime_->has(api::GetEpDevices)) return found;
    Device const* devices = nullptr;
    std::size_t count = 0;
    runtime_->call(api::GetEpDevices, static_cast<const api::Env*>(runtime_->env()), &devices,
                   &count);
    std::copy_if(devices, devices + count, std::back_inserter(found), [&](Device each) {
      return runtime_->function(api::EpDevice_EpName)(each) == provider;
    });
    return found;
  }

  /// The kind of hardware. Source: `enum OrtHardwareDeviceType` of the header.
  std::string find_kind(Device device) const {
    const int kind = runtime_->function(api::HardwareDevice_Type)(
        runtime_->function(api::EpDevice_Device)(device));
    return kind == 0 ? "CPU" : kind == 1 ? "GPU" : kind == 2 ? "NPU" : "device";
  }

  std::string find_vendor(Device device) const {
    return runtime_->function(api::HardwareDevice_Vendor)(
        runtime_->function(api::EpDevice_Device)(device));
  }

  /// Returns the plugin's device that a variant asks for; see edgepack_providers.py for the
  /// sources.
  Device find_device(const Provider& provider) const {
    const std::vector<Device> devices = list_devices(provider.name);
    return provider.plugin ? find_own_device(provider.name, *provider.plugin, devices)
                           : find_known_device(provider, devices);
  }

  Device find_known_device(const Provider& provider, const std::vector<Device>& devices) const {
    const auto backend = provider.options.find("backend_type");
    const std::string type = backend == provider.options.end() ? "" : backend->second;
    const std::string wanted = type == "cpu" ? "CPU" : type == "gpu" ? "GPU" : "NPU";
    std::vector<std::string> kinds;
    for (const Device each : devices) {
      if (find_kind(each) == wanted) return each;
      kinds.push_back(find_kind(each));
    }
    throw Refused(provider.name + "'s plugin lists no " + wanted + " on this machine, only " +
                  join(kinds, ", "));
  }

  Device find_own_device(const std::string& provider, const Plugin& plugin,
                         const std::vector<Device>& devices) const {
    std::vector<std::string> listed;
    for (const Device each : devices) {
      const std::string kind = find_kind(each), vendor = find_vendor(each);
      if (plugin.type.value_or(kind) == kind &&
          lower_ascii(plugin.vendor.value_or(vendor)) == lower_ascii(vendor))
        return each;
      listed.push_back(kind + " of " + (vendor.empty() ? "nobody" : vendor));
    }
    const std::string asked =
        plugin.type.value_or("device") + (plugin.vendor ? " of " + *plugin.vendor : "");
    throw Refused(provider + "'s plugin lists no " + asked + " on this machine, only " +
                  join(listed, ", "));
  }

  /// Lets a session run the model's custom operators, from the bundle's library for this machine.
  void register_custom_ops(api::SessionOptions* options) const {
    const Words& libraries = manifest_.custom_ops();
    if (libraries.empty()) return;
    const std::string machine = find_machine();
    const auto found = libraries.find(machine);
    std::vector<std::string> known;
    for (const auto& each : libraries) known.push_back(each.first);
    if (found == libraries.end())
      throw Refused("the bundle has its custom operators for " + join(known, ", ") + ", not for " +
                    machine);
    try {
      runtime_->call(api::RegisterCustomOpsLibrary_V2, options,
                     manifest_.find_path(found->second).c_str());
    } catch (const OrtFailure& failure) {
      throw Refused("the library of its custom operators does not load: " +
                    shorten_error(failure.what()));
    }
  }

  static void check_words(const Variant& variant) {
    std::vector<std::string> problems;
    const auto add = [&](const char* setting, const std::string& word,
                         const std::vector<std::string>& words) {
      if (std::find(words.begin(), words.end(), word) == words.end()) {
        problems.push_back(std::string(setting) + " is " + quote(word) + ": it takes one of " +
                           join(words, ", "));
      }
    };
    add("graph_optimization_level", variant.session.graph_optimization_level,
        {"disabled", "basic", "extended", "all"});
    add("execution_mode", variant.session.execution_mode, {"sequential", "parallel"});
    if (!problems.empty()) throw Refused(join(problems, "; "));
  }

  static void add_cache(Variant& variant, const std::filesystem::path& folder) {
    std::error_code failed;
    std::filesystem::create_directories(folder, failed);
    if (failed) {
      // Python names the first folder that could not be made.
      std::error_code none;
      std::filesystem::path missing = folder;
      while (missing.has_parent_path() && !std::filesystem::exists(missing.parent_path(), none))
        missing = missing.parent_path();
      throw Refused("its cache folder cannot be made: [Errno " + std::to_string(failed.value()) +
                    "] " + failed.message() + ": " + quote(missing.string()));
    }
    fill_settings(variant.session.config, folder.string());
    for (Provider& each : variant.providers) fill_settings(each.options, folder.string());
  }

  Session open_filled(const Variant& variant, const std::string& profile) const {
    try {
      return create(variant, profile, true);
    } catch (const OrtFailure& failure) {
      try {
        // onnxruntime 1.31.1 fails with precise kernels where nodes share an int8 constant. The
        // golden outputs tell whether the others will do.
        return create(variant, profile, false);
      } catch (const OrtFailure&) {
        throw_refusal(failure, variant);
      }
    }
  }

  [[noreturn]] static void throw_refusal(const OrtFailure& failure, const Variant& variant) {
    const std::string said = failure.what();
    // So ends a session with session.disable_cpu_ep_fallback, whatever kept nodes from the
    // provider.
    if (said.find("fallback to CPU EP has been explicitly disabled") != std::string::npos) {
      throw Refused("the session cannot be created: " + variant.providers[0].name +
                    " does not take every node, or not this machine; " + kStderr);
    }
    throw NotOpened("the session cannot be created: " + shorten_error(said));
  }

  Session create(const Variant& variant, const std::string& profile, bool precise) const {
    const Owned<api::SessionOptions> options = make_options(variant, profile, precise);
    for (const Provider& each : variant.providers) {
      if (each.name != kCpu) append(options.get(), each);
    }
    const std::string path = manifest_.find_path(variant.model);
    return Session(runtime_, make_owned(*runtime_, api::ReleaseSession, api::CreateSession,
                                        static_cast<const api::Env*>(runtime_->env()), path.c_str(),
                                        static_cast<const api::SessionOptions*>(options.get())));
  }

  /// Makes the options of a session. Sources of the numbers: `enum GraphOptimizationLevel` and
  /// `enum ExecutionMode` of the header.
  Owned<api::SessionOptions> make_options(const Variant& variant, const std::string& profile,
                                          bool precise) const {
    static const std::map<std::string, int> levels = {
        {"disabled", 0}, {"basic", 1}, {"extended", 2}, {"all", 99}};
    const Settings& session = variant.session;
    Owned<api::SessionOptions> options =
        make_owned(*runtime_, api::ReleaseSessionOptions, api::CreateSessionOptions);
    const auto set = [&](const auto& slot, auto... values) {
      runtime_->call(slot, options.get(), values...);
    };
    set(api::SetSessionLogSeverityLevel, session.log_severity_level.value_or(3));
    set(api::SetIntraOpNumThreads, choose_threads(session));
    set(api::SetSessionGraphOptimizationLevel, levels.at(session.graph_optimization_level));
    set(api::SetSessionExecutionMode, session.execution_mode == "parallel" ? 1 : 0);
    if (session.inter_op_num_threads) set(api::SetInterOpNumThreads, *session.inter_op_num_threads);
    if (session.enable_cpu_mem_arena)
      set(*session.enable_cpu_mem_arena ? api::EnableCpuMemArena : api::DisableCpuMemArena);
    if (session.enable_mem_pattern)
      set(*session.enable_mem_pattern ? api::EnableMemPattern : api::DisableMemPattern);
    for (const auto& [key, value] : make_config(variant, precise))
      set(api::AddSessionConfigEntry, key.c_str(), value.c_str());
    if (variant.needs_extensions) set(api::RegisterCustomOpsLibrary_V2, extensions_.c_str());
    register_custom_ops(options.get());
    if (!profile.empty()) set(api::EnableProfiling, profile.c_str());
    return options;
  }

  /// Returns the session config entries of a variant on this machine.
  static Words make_config(const Variant& variant, bool precise) {
    Words config;
    // The default int8 kernels saturate there; these are exact at half the speed.
    if (precise && is_x86_without_vnni()) config[kPrecise] = "1";
    if (is_cpu_forbidden(variant)) config["session.disable_cpu_ep_fallback"] = "1";
    if (is_cpu_limited(variant)) config["session.record_ep_graph_assignment_info"] = "1";
    for (const auto& [key, value] : variant.session.config) config[key] = value;
    return config;
  }

  /// Adds an execution provider to a session, by whichever function of onnxruntime takes its
  /// options.
  void append(api::SessionOptions* options, const Provider& provider) const {
    std::vector<const char*> keys, values;
    for (const auto& [key, value] : provider.options) {
      keys.push_back(key.c_str());
      values.push_back(value.c_str());
    }
    const std::size_t count = keys.size();
    if (!list_devices(provider.name).empty()) {
      const Device device = find_device(provider);
      runtime_->call(api::SessionOptionsAppendExecutionProvider_V2, options, runtime_->env(),
                     &device, std::size_t{1}, keys.data(), values.data(), count);
    } else if (provider.name == kCuda) {
      const Owned<api::CudaOptions> cuda =
          make_owned(*runtime_, api::ReleaseCUDAProviderOptions, api::CreateCUDAProviderOptions);
      runtime_->call(api::UpdateCUDAProviderOptions, cuda.get(), keys.data(), values.data(), count);
      runtime_->call(api::SessionOptionsAppendExecutionProvider_CUDA_V2, options, cuda.get());
    } else if (provider.name == kTensorRt) {
      const Owned<api::TensorRtOptions> trt = make_owned(
          *runtime_, api::ReleaseTensorRTProviderOptions, api::CreateTensorRTProviderOptions);
      runtime_->call(api::UpdateTensorRTProviderOptions, trt.get(), keys.data(), values.data(),
                     count);
      runtime_->call(api::SessionOptionsAppendExecutionProvider_TensorRT_V2, options, trt.get());
    } else if (provider.name == kOpenVino &&
               runtime_->has(api::SessionOptionsAppendExecutionProvider_OpenVINO_V2)) {
      runtime_->call(api::SessionOptionsAppendExecutionProvider_OpenVINO_V2, options, keys.data(),
                     values.data(), count);
    } else if (provider.name == kAcl) {
      append_acl(options, provider);
    } else {
      runtime_->call(api::SessionOptionsAppendExecutionProvider, options,
                     find_short_name(provider.name).c_str(), keys.data(), values.data(), count);
    }
  }

  /// Source: onnxruntime/include/onnxruntime/core/providers/acl/acl_provider_factory.h of 1.21, the
  /// only way to it.
  void append_acl(api::SessionOptions* options, const Provider& provider) const {
    const auto append = runtime_->find_exported<api::Status*(api::SessionOptions*, bool)>(
        "OrtSessionOptionsAppendExecutionProvider_ACL");
    if (append == nullptr)
      throw OrtFailure("onnxruntime " + runtime_->version() + " exports no function for " +
                       provider.name);
    const auto fast = provider.options.find("enable_fast_math");
    runtime_->check(append(options, fast != provider.options.end() &&
                                        (fast->second == "True" || fast->second == "true")));
  }

  /// The name by which SessionOptionsAppendExecutionProvider knows a provider. Source: its comment
  /// in the header.
  static std::string find_short_name(const std::string& provider) {
    const std::string name = provider.substr(0, provider.rfind("ExecutionProvider"));
    return name == "Xnnpack" ? "XNNPACK" : name == "WebGpu" ? "WebGPU" : name;
  }

  RuntimePointer runtime_;
  const Manifest& manifest_;
  std::filesystem::path cache_;
  std::string extensions_;
  Words plugins_;
};

}  // namespace edgepack::detail

#endif
