// onnxruntime's C API, opened while the program runs.
//
// Nothing is linked: onnxruntime gives its symbols the version of its exact release
// (`OrtGetApiBase@@VERS_1.31.1`), so a program that is linked with one release does not start with
// another. `OrtGetApiBase` is looked up in the library instead, and leads to a table of functions.
//
// The functions that are called here are declared in our own words, each by its place in that table
// (`struct OrtApi` of onnxruntime_c_api.h) and by the API version since which it is there. The
// table only ever grows at its end: "The actual types defined here may change between versions, new
// functions are added at the end" is what that header promises of OrtApi, and onnxruntime_c_api.cc
// asserts the places of each version's last function. tests/native compares every place with a real
// header.

#ifndef EDGEPACK_DETAIL_ORT_HPP
#define EDGEPACK_DETAIL_ORT_HPP

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdlib.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "edgepack/detail/error.hpp"
#include "edgepack/detail/tensor.hpp"

namespace edgepack::detail {

/// The least API version that is enough: that of onnxruntime 1.16, the first with all that is
/// always called here. NVIDIA's wheels for JetPack 5 have 1.16 to 1.18.
constexpr unsigned kLeastApi = 16;
/// The newest API version whose functions are called here where they are there.
constexpr unsigned kNewestApi = 24;

namespace api {

struct Allocator;
struct CudaOptions;
struct Env;
struct EpAssignedNode;
struct EpAssignedSubgraph;
struct EpDevice;
struct HardwareDevice;
struct IoBinding;
struct KeyValuePairs;
struct MemoryInfo;
struct RunOptions;
struct Session;
struct SessionOptions;
struct Status;
struct TensorInfo;
struct TensorRtOptions;
struct Value;

using Words = const char* const*;

/// A function of the table.
template <class Function>
struct Slot {
  std::size_t place;
  unsigned since;
  const char* name;
};

#define EDGEPACK_SLOT(name, place, since, ...) \
  inline constexpr Slot<__VA_ARGS__> name { place, since, #name }

EDGEPACK_SLOT(GetErrorCode, 1, 1, int(const Status*));
EDGEPACK_SLOT(GetErrorMessage, 2, 1, const char*(const Status*));
EDGEPACK_SLOT(CreateEnv, 3, 1, Status*(int, const char*, Env**));
EDGEPACK_SLOT(DisableTelemetryEvents, 6, 1, Status*(const Env*));
EDGEPACK_SLOT(CreateSession, 7, 1,
              Status*(const Env*, const char*, const SessionOptions*, Session**));
EDGEPACK_SLOT(Run, 9, 1,
              Status*(Session*, const RunOptions*, Words, const Value* const*, std::size_t, Words,
                      std::size_t, Value**));
EDGEPACK_SLOT(CreateSessionOptions, 10, 1, Status*(SessionOptions**));
EDGEPACK_SLOT(SetSessionExecutionMode, 13, 1, Status*(SessionOptions*, int));
EDGEPACK_SLOT(EnableProfiling, 14, 1, Status*(SessionOptions*, const char*));
EDGEPACK_SLOT(EnableMemPattern, 16, 1, Status*(SessionOptions*));
EDGEPACK_SLOT(DisableMemPattern, 17, 1, Status*(SessionOptions*));
EDGEPACK_SLOT(EnableCpuMemArena, 18, 1, Status*(SessionOptions*));
EDGEPACK_SLOT(DisableCpuMemArena, 19, 1, Status*(SessionOptions*));
EDGEPACK_SLOT(SetSessionLogSeverityLevel, 22, 1, Status*(SessionOptions*, int));
EDGEPACK_SLOT(SetSessionGraphOptimizationLevel, 23, 1, Status*(SessionOptions*, int));
EDGEPACK_SLOT(SetIntraOpNumThreads, 24, 1, Status*(SessionOptions*, int));
EDGEPACK_SLOT(SetInterOpNumThreads, 25, 1, Status*(SessionOptions*, int));
EDGEPACK_SLOT(CreateTensorWithDataAsOrtValue, 49, 1,
              Status*(const MemoryInfo*, void*, std::size_t, const std::int64_t*, std::size_t, int,
                      Value**));
EDGEPACK_SLOT(IsTensor, 50, 1, Status*(const Value*, int*));
EDGEPACK_SLOT(GetTensorMutableData, 51, 1, Status*(Value*, void**));
EDGEPACK_SLOT(GetTensorElementType, 60, 1, Status*(const TensorInfo*, int*));
EDGEPACK_SLOT(GetDimensionsCount, 61, 1, Status*(const TensorInfo*, std::size_t*));
EDGEPACK_SLOT(GetDimensions, 62, 1, Status*(const TensorInfo*, std::int64_t*, std::size_t));
EDGEPACK_SLOT(GetTensorTypeAndShape, 65, 1, Status*(const Value*, TensorInfo**));
EDGEPACK_SLOT(CreateCpuMemoryInfo, 69, 1, Status*(int, int, MemoryInfo**));
EDGEPACK_SLOT(AllocatorFree, 76, 1, Status*(Allocator*, void*));
EDGEPACK_SLOT(GetAllocatorWithDefaultOptions, 78, 1, Status*(Allocator**));
EDGEPACK_SLOT(ReleaseEnv, 92, 1, void(Env*));
EDGEPACK_SLOT(ReleaseStatus, 93, 1, void(Status*));
EDGEPACK_SLOT(ReleaseMemoryInfo, 94, 1, void(MemoryInfo*));
EDGEPACK_SLOT(ReleaseSession, 95, 1, void(Session*));
EDGEPACK_SLOT(ReleaseValue, 96, 1, void(Value*));
EDGEPACK_SLOT(ReleaseTensorTypeAndShapeInfo, 99, 1, void(TensorInfo*));
EDGEPACK_SLOT(ReleaseSessionOptions, 100, 1, void(SessionOptions*));
EDGEPACK_SLOT(SessionEndProfiling, 110, 2, Status*(Session*, Allocator*, char**));
EDGEPACK_SLOT(GetAvailableProviders, 125, 4, Status*(char***, int*));
EDGEPACK_SLOT(ReleaseAvailableProviders, 126, 4, Status*(char**, int));
EDGEPACK_SLOT(AddSessionConfigEntry, 130, 5, Status*(SessionOptions*, const char*, const char*));
EDGEPACK_SLOT(RunWithBinding, 133, 5, Status*(Session*, const RunOptions*, const IoBinding*));
EDGEPACK_SLOT(CreateIoBinding, 134, 5, Status*(Session*, IoBinding**));
EDGEPACK_SLOT(ReleaseIoBinding, 135, 5, void(IoBinding*));
EDGEPACK_SLOT(BindInput, 136, 5, Status*(IoBinding*, const char*, const Value*));
EDGEPACK_SLOT(BindOutput, 137, 5, Status*(IoBinding*, const char*, const Value*));
EDGEPACK_SLOT(SessionOptionsAppendExecutionProvider_TensorRT_V2, 170, 9,
              Status*(SessionOptions*, const TensorRtOptions*));
EDGEPACK_SLOT(CreateTensorRTProviderOptions, 171, 9, Status*(TensorRtOptions**));
EDGEPACK_SLOT(UpdateTensorRTProviderOptions, 172, 9,
              Status*(TensorRtOptions*, Words, Words, std::size_t));
EDGEPACK_SLOT(ReleaseTensorRTProviderOptions, 174, 9, void(TensorRtOptions*));
EDGEPACK_SLOT(SessionOptionsAppendExecutionProvider_CUDA_V2, 204, 11,
              Status*(SessionOptions*, const CudaOptions*));
EDGEPACK_SLOT(CreateCUDAProviderOptions, 205, 11, Status*(CudaOptions**));
EDGEPACK_SLOT(UpdateCUDAProviderOptions, 206, 11, Status*(CudaOptions*, Words, Words, std::size_t));
EDGEPACK_SLOT(ReleaseCUDAProviderOptions, 208, 11, void(CudaOptions*));
EDGEPACK_SLOT(SessionOptionsAppendExecutionProvider, 216, 12,
              Status*(SessionOptions*, const char*, Words, Words, std::size_t));
EDGEPACK_SLOT(RegisterCustomOpsLibrary_V2, 228, 14, Status*(SessionOptions*, const char*));
EDGEPACK_SLOT(SessionOptionsAppendExecutionProvider_OpenVINO_V2, 275, 17,
              Status*(SessionOptions*, Words, Words, std::size_t));
EDGEPACK_SLOT(GetKeyValue, 297, 22, const char*(const KeyValuePairs*, const char*));
EDGEPACK_SLOT(RegisterExecutionProviderLibrary, 301, 22, Status*(Env*, const char*, const char*));
EDGEPACK_SLOT(GetEpDevices, 303, 22, Status*(const Env*, const EpDevice* const**, std::size_t*));
EDGEPACK_SLOT(SessionOptionsAppendExecutionProvider_V2, 304, 22,
              Status*(SessionOptions*, Env*, const EpDevice* const*, std::size_t, Words, Words,
                      std::size_t));
EDGEPACK_SLOT(HardwareDevice_Type, 307, 22, int(const HardwareDevice*));
EDGEPACK_SLOT(HardwareDevice_Vendor, 309, 22, const char*(const HardwareDevice*));
EDGEPACK_SLOT(EpDevice_EpName, 312, 22, const char*(const EpDevice*));
EDGEPACK_SLOT(EpDevice_EpMetadata, 314, 22, const KeyValuePairs*(const EpDevice*));
EDGEPACK_SLOT(EpDevice_Device, 316, 22, const HardwareDevice*(const EpDevice*));
EDGEPACK_SLOT(Session_GetEpGraphAssignmentInfo, 407, 24,
              Status*(const Session*, const EpAssignedSubgraph* const**, std::size_t*));
EDGEPACK_SLOT(EpAssignedSubgraph_GetEpName, 408, 24,
              Status*(const EpAssignedSubgraph*, const char**));
EDGEPACK_SLOT(EpAssignedSubgraph_GetNodes, 409, 24,
              Status*(const EpAssignedSubgraph*, const EpAssignedNode* const**, std::size_t*));

#undef EDGEPACK_SLOT

}  // namespace api

/// A call of onnxruntime that failed; the text is the one that Python shows.
class OrtFailure : public std::runtime_error {
 public:
  explicit OrtFailure(const std::string& text, const char* kind = "RuntimeError")
      : std::runtime_error(text), kind_(kind) {}

  /// The name of Python's class of this error.
  const char* kind() const noexcept { return kind_; }

 private:
  const char* kind_;
};

/// An object of onnxruntime that is released where it goes out of scope.
template <class T>
using Owned = std::unique_ptr<T, void (*)(T*)>;

class Runtime;

/// Makes an object by a function of the table that gives it last. Throws `OrtFailure`.
template <class T, class... Taken, class... Given>
Owned<T> make_owned(const Runtime& runtime, const api::Slot<void(T*)>& release,
                    const api::Slot<api::Status*(Taken...)>& make, Given... given);

/// What an error of onnxruntime means for a caller, where no variant is being tried; `doing` says
/// what failed.
inline Error make_run_error(const OrtFailure& failure, const std::string& doing) {
  const std::string_view text = failure.what();
  for (const char* sign : {"bad_alloc", "Failed to allocate", "out of memory"}) {
    if (text.find(sign) != std::string_view::npos) {
      return Error(Code::out_of_memory, std::string(text),
                   "give smaller inputs, or free some memory");
    }
  }
  return Error(Code::internal, doing + ": " + std::string(text),
               "give inputs as the bundle's README shows");
}

/// Calls, and returns what that returns; whatever is thrown leaves as an `Error`, but for
/// `std::bad_alloc` where not even the memory of an error is left.
template <class Call>
auto call_safely(const char* doing, const Call& call) -> decltype(call()) {
  try {
    return call();
  } catch (const Error&) {
    throw;
  } catch (const OrtFailure& failure) {
    throw make_run_error(failure, doing);
  } catch (const std::bad_alloc&) {
    throw Error(Code::out_of_memory, "there is no memory left", "free some memory");
  } catch (const std::length_error&) {
    throw Error(Code::out_of_memory, "a tensor is larger than memory", "give smaller inputs");
  } catch (const std::exception& error) {
    throw Error(Code::internal, error.what(), "this is a fault in edgepack: please report it");
  }
}

/// onnxruntime's library and its environment: one for all models of a process. Threads may share
/// it.
class Runtime {
 public:
  /// Opens onnxruntime: what is asked for; else the library in the bundle's `cpp/lib`; else what
  /// the process has loaded; else what the system's linker finds.
  ///
  /// Throws `Error` (no_runtime): there is none, it is older than `kLeastApi`, or the process has
  /// loaded another copy, with which it would not share its settings.
  static std::shared_ptr<const Runtime> open(const std::string& asked, const std::string& bundle) {
    // The only state of a process: the one environment, which its models share.
    static std::mutex guard;
    static std::weak_ptr<const Runtime> shared;
    const std::lock_guard<std::mutex> lock(guard);
    const std::vector<std::string> loaded = list_loaded();
    const std::string path = choose(asked, bundle, loaded);
    if (!path.empty() && !loaded.empty() && !is_among(path, loaded)) {
      throw Error(Code::no_runtime,
                  "this process has loaded onnxruntime from " + loaded[0] +
                      ", and is to load another from " + path,
                  "use one copy: name the one that is loaded in Options::runtime");
    }
    std::shared_ptr<const Runtime> found = shared.lock();
    if (found == nullptr) {
      found.reset(new Runtime(path));
      shared = found;
    }
    return found;
  }

  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;
  ~Runtime() { function(api::ReleaseEnv)(env_); }

  /// onnxruntime's own version, such as `1.31.1`.
  const std::string& version() const { return version_; }

  /// Whether this onnxruntime is new enough for a function.
  template <class F>
  bool has(const api::Slot<F>& slot) const {
    return slot.since <= api_;
  }

  /// Returns a function of the table, which has to be there.
  template <class F>
  F* function(const api::Slot<F>& slot) const {
    return reinterpret_cast<F*>(table_[slot.place]);
  }

  /// Calls a function that may fail. Throws `OrtFailure`.
  template <class... Taken, class... Given>
  void call(const api::Slot<api::Status*(Taken...)>& slot, Given... given) const {
    if (!has(slot)) {
      throw OrtFailure("onnxruntime " + version_ + " has no " + slot.name + ": 1." +
                       std::to_string(slot.since) + " has");
    }
    check(function(slot)(given...));
  }

  /// Throws `OrtFailure` where a status is an error, and releases it.
  void check(api::Status* status) const {
    if (status == nullptr) return;
    const std::unique_ptr<api::Status, void (*)(api::Status*)> owned(status,
                                                                     function(api::ReleaseStatus));
    // Source: `enum OrtErrorCode` of the header, in the words that Python prints (1.31.1,
    // observed).
    constexpr const char* names[] = {"SUCCESS",           "FAIL",
                                     "INVALID_ARGUMENT",  "NO_SUCHFILE",
                                     "NO_MODEL",          "ENGINE_ERROR",
                                     "RUNTIME_EXCEPTION", "INVALID_PROTOBUF",
                                     "MODEL_LOADED",      "NOT_IMPLEMENTED",
                                     "INVALID_GRAPH",     "EP_FAIL"};
    constexpr const char* kinds[] = {"RuntimeError",     "Fail",           "InvalidArgument",
                                     "NoSuchFile",       "NoModel",        "EngineError",
                                     "RuntimeException", "InvalidProtobuf", "ModelLoaded",
                                     "NotImplemented",   "InvalidGraph",   "EPFail"};
    const int code = function(api::GetErrorCode)(status);
    const bool is_known = code >= 0 && code < 12;
    throw OrtFailure("[ONNXRuntimeError] : " + std::to_string(code) + " : " +
                         (is_known ? names[code] : "GENERAL ERROR") + " : " +
                         function(api::GetErrorMessage)(status),
                     is_known ? kinds[code] : kinds[0]);
  }

  api::Env* env() const { return env_; }

  /// Finds a function that a library exports beside the table; nullptr where it has none.
  template <class F>
  F* find_exported(const char* name) const {
    return reinterpret_cast<F*>(dlsym(library_, name));
  }

  /// The execution providers that are in the library itself.
  std::vector<std::string> list_providers() const {
    char** names = nullptr;
    int count = 0;
    call(api::GetAvailableProviders, &names, &count);
    const auto release = [&](char** all) {
      function(api::ReleaseStatus)(function(api::ReleaseAvailableProviders)(all, count));
    };
    const std::unique_ptr<char*, decltype(release)> owned(names, release);
    return {names, names + count};
  }

 private:
  using Function = void (*)();

  struct ApiBase {
    const Function* (*get_api)(std::uint32_t);
    const char* (*get_version)();
  };

  explicit Runtime(const std::string& path) {
    // Official builds of onnxruntime 1.29 and newer send telemetry unless this is set before they
    // load. Source: Privacy.md in the onnxruntime 1.31.1 wheel. A program whose threads read the
    // environment sets it itself.
    const char* is_disabled = getenv("ORT_DISABLE_TELEMETRY");
    if (is_disabled == nullptr || std::string_view(is_disabled) != "1")
      setenv("ORT_DISABLE_TELEMETRY", "1", 1);
    library_ = load(path);
    const auto get_base = find_exported<const ApiBase*()>("OrtGetApiBase");
    if (get_base == nullptr) {
      throw Error(Code::no_runtime, path + " is no onnxruntime: it has no OrtGetApiBase", kWhere);
    }
    const ApiBase* base = get_base();
    version_ = base->get_version();
    api_ = std::min(kNewestApi, read_api(version_));
    table_ = api_ < kLeastApi ? nullptr : base->get_api(api_);
    if (table_ == nullptr) {
      throw Error(Code::no_runtime,
                  "onnxruntime " + version_ + " is too old: 1." + std::to_string(kLeastApi) +
                      " is the oldest that will do",
                  kWhere);
    }
    try {
      constexpr int error = 3;
      Owned<api::Env> env = make_owned(*this, api::ReleaseEnv, api::CreateEnv, error, "edgepack");
      call(api::DisableTelemetryEvents, static_cast<const api::Env*>(env.get()));
      env_ = env.release();
    } catch (const OrtFailure& failure) {
      if (make_run_error(failure, "").code() == Code::out_of_memory)
        throw make_run_error(failure, "");
      throw Error(Code::no_runtime,
                  "onnxruntime " + version_ + " does not start: " + failure.what(), kWhere);
    }
  }

  static constexpr const char* kWhere =
      "install onnxruntime, or name its libonnxruntime.so in Options::runtime: the bundle's README "
      "has the version";

  /// The API version of a release: its second number.
  static unsigned read_api(const std::string& version) {
    const std::size_t dot = version.find('.');
    if (dot == std::string::npos) return 0;
    return version.substr(0, dot) == "1"
               ? static_cast<unsigned>(std::strtoul(version.c_str() + dot + 1, nullptr, 10))
               : kNewestApi;
  }

  static void* load(const std::string& path) {
    std::string said;
    for (const char* name : {path.c_str(), "libonnxruntime.so.1", "libonnxruntime.so"}) {
      // It is never unloaded: threads that it started may outlive its models.
      void* found = *name == '\0' ? nullptr : dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
      if (found != nullptr) return found;
      if (*name != '\0') said += std::string(said.empty() ? "" : "; ") + dlerror();
      if (!path.empty()) break;
    }
    throw Error(Code::no_runtime, "onnxruntime does not load: " + said, kWhere);
  }

  static std::string choose(const std::string& asked, const std::string& bundle,
                            const std::vector<std::string>& loaded) {
    // The linker keeps the path as it is given, which has to lead there from other folders, too.
    const auto make_absolute = [](const std::string& path) {
      std::error_code none;
      const std::filesystem::path whole = std::filesystem::absolute(path, none);
      return none ? path : whole.string();
    };
    if (asked.find('/') != std::string::npos) {
      if (find_real_path(asked).empty())
        throw Error(Code::no_runtime, "there is no " + asked, kWhere);
      return make_absolute(asked);
    }
    if (!asked.empty()) return asked;
    for (const char* name : {"libonnxruntime.so.1", "libonnxruntime.so"}) {
      const std::string path = bundle + "/cpp/lib/" + name;
      if (!find_real_path(path).empty()) return make_absolute(path);
    }
    return loaded.empty() ? "" : loaded[0];
  }

  static std::vector<std::string> list_loaded() {
    std::vector<std::string> found;
    const auto add = [](dl_phdr_info* info, std::size_t, void* into) {
      const std::string_view path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
      if (path.substr(path.rfind('/') + 1).substr(0, 17) != "libonnxruntime.so") return 0;
      try {
        static_cast<std::vector<std::string>*>(into)->emplace_back(path);
        return 0;
      } catch (const std::bad_alloc&) {  // nothing may be thrown through the linker
        return 1;
      }
    };
    if (dl_iterate_phdr(add, &found) != 0) throw std::bad_alloc();
    return found;
  }

  static std::string find_real_path(const std::string& path) {
    char real[PATH_MAX];
    return realpath(path.c_str(), real) == nullptr ? "" : real;
  }

  static bool is_among(const std::string& path, const std::vector<std::string>& loaded) {
    // What a name without a folder stands for, the linker knows.
    if (path.find('/') == std::string::npos)
      return dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD) != nullptr;
    const std::string real = find_real_path(path);
    return std::any_of(loaded.begin(), loaded.end(),
                       [&](const std::string& each) { return find_real_path(each) == real; });
  }

  void* library_ = nullptr;
  const Function* table_ = nullptr;
  unsigned api_ = 0;
  std::string version_;
  api::Env* env_ = nullptr;
};

using RuntimePointer = std::shared_ptr<const Runtime>;

template <class T, class... Taken, class... Given>
Owned<T> make_owned(const Runtime& runtime, const api::Slot<void(T*)>& release,
                    const api::Slot<api::Status*(Taken...)>& make, Given... given) {
  T* made = nullptr;
  runtime.call(make, given..., &made);
  return Owned<T>(made, runtime.function(release));
}

/// Makes a tensor of onnxruntime that reads, or writes, values where they lie.
inline Owned<api::Value> make_value(const Runtime& runtime, const TensorView& view) {
  static char nothing = 0;  // onnxruntime takes no null pointer, also of a tensor without values
  const Owned<api::MemoryInfo> memory =
      make_owned(runtime, api::ReleaseMemoryInfo, api::CreateCpuMemoryInfo, 1, 0);
  void* data = view.data == nullptr ? &nothing : const_cast<void*>(view.data);
  return make_owned(runtime, api::ReleaseValue, api::CreateTensorWithDataAsOrtValue,
                    static_cast<const api::MemoryInfo*>(memory.get()), data, view.bytes,
                    view.shape.data(), view.shape.size(), static_cast<int>(view.type));
}

/// Returns a view of a tensor's values in the host's memory. Throws `OrtFailure`: it is no tensor
/// of numbers.
inline TensorView view_value(const Runtime& runtime, api::Value* value) {
  int is_tensor = 0, type = 0;
  std::size_t rank = 0;
  if (value != nullptr)
    runtime.call(api::IsTensor, static_cast<const api::Value*>(value), &is_tensor);
  if (is_tensor == 0) throw OrtFailure("an output is no tensor");
  const Owned<api::TensorInfo> info =
      make_owned(runtime, api::ReleaseTensorTypeAndShapeInfo, api::GetTensorTypeAndShape,
                 static_cast<const api::Value*>(value));
  runtime.call(api::GetTensorElementType, info.get(), &type);
  runtime.call(api::GetDimensionsCount, info.get(), &rank);
  std::vector<std::int64_t> shape(rank);
  runtime.call(api::GetDimensions, info.get(), shape.data(), rank);
  const TypeFacts* facts = find_type(type);
  if (facts == nullptr)
    throw OrtFailure("an output has values of onnxruntime's type " + std::to_string(type));
  void* data = nullptr;
  runtime.call(api::GetTensorMutableData, value, &data);
  const std::size_t bytes = count_bytes(facts->type, shape);
  return {facts->type, std::move(shape), data, bytes};
}

}  // namespace edgepack::detail

#endif
