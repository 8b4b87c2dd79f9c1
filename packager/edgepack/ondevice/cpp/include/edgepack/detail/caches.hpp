// The folders in which providers keep engines and compiled models: the same ones as the Python
// loader's.

#ifndef EDGEPACK_DETAIL_CACHES_HPP
#define EDGEPACK_DETAIL_CACHES_HPP

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "edgepack/detail/error.hpp"
#include "edgepack/detail/json.hpp"
#include "edgepack/detail/manifest.hpp"
#include "edgepack/detail/requirements.hpp"

namespace edgepack::detail {

/// In a setting's value: the variant's cache folder on this machine.
inline constexpr const char* kCache = "{cache}";

/// Returns the SHA-256 of some bytes in hexadecimal. Source: FIPS 180-4.
inline std::string compute_sha256(std::string_view bytes) {
  constexpr std::uint32_t k[64] = {
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4,
      0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe,
      0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f,
      0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7,
      0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85, 0x2e1b2138, 0x4d2c6dfc,
      0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b,
      0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116,
      0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7,
      0xc67178f2};
  std::array<std::uint32_t, 8> h = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::string padded(bytes);
  padded += '\x80';
  padded.append((120 - padded.size() % 64) % 64, '\0');
  const std::uint64_t bits = std::uint64_t{bytes.size()} * 8;
  for (int shift = 56; shift >= 0; shift -= 8) padded += static_cast<char>(bits >> shift & 0xFF);
  const auto rotate = [](std::uint32_t x, int n) { return x >> n | x << (32 - n); };
  for (std::size_t at = 0; at < padded.size(); at += 64) {
    std::uint32_t w[64];
    for (std::size_t t = 0; t < 64; ++t) {
      w[t] = 0;
      for (std::size_t b = 0; t < 16 && b < 4; ++b)
        w[t] = w[t] << 8 | static_cast<unsigned char>(padded[at + 4 * t + b]);
      if (t < 16) continue;
      const std::uint32_t s0 = rotate(w[t - 15], 7) ^ rotate(w[t - 15], 18) ^ w[t - 15] >> 3;
      const std::uint32_t s1 = rotate(w[t - 2], 17) ^ rotate(w[t - 2], 19) ^ w[t - 2] >> 10;
      w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }
    std::array<std::uint32_t, 8> v = h;
    for (std::size_t t = 0; t < 64; ++t) {
      const std::uint32_t s1 = rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25);
      const std::uint32_t t1 = v[7] + s1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[t] + w[t];
      const std::uint32_t s0 = rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22);
      const std::uint32_t t2 = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
      v = {t1 + t2, v[0], v[1], v[2], v[3] + t1, v[4], v[5], v[6]};
    }
    for (std::size_t n = 0; n < 8; ++n) h[n] += v[n];
  }
  std::string text;
  for (const std::uint32_t word : h) {
    for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[word >> shift & 0xF];
  }
  return text;
}

/// Settings as `json.dumps(..., sort_keys=True)` writes them.
inline std::string format_json_words(const Words& words) {
  std::vector<std::string> members;
  for (const auto& [name, value] : words)
    members.push_back(format_json_text(name) + ": " + format_json_text(value));
  return "{" + join(members, ", ") + "}";
}

/// A value of the manifest as `json.dumps(..., sort_keys=True)` writes it, where its numbers are
/// whole.
inline std::string format_json(const Json& json) {
  std::vector<std::string> parts;
  switch (json.kind()) {
    case Json::Kind::null: return "null";
    case Json::Kind::boolean: return json.boolean() ? "true" : "false";
    case Json::Kind::number: return std::to_string(json.integer());
    case Json::Kind::text: return format_json_text(json.text());
    case Json::Kind::list:
      for (const Json& each : json.items()) parts.push_back(format_json(each));
      return "[" + join(parts, ", ") + "]";
    case Json::Kind::object: break;
  }
  std::map<std::string, const Json*> members;
  for (const auto& [name, value] : json.members()) members[name] = &value;
  for (const auto& [name, value] : members)
    parts.push_back(format_json_text(name) + ": " + format_json(*value));
  return "{" + join(parts, ", ") + "}";
}

/// What decides an engine beside the model: providers with their options, and the session's config.
inline std::string format_settings(const Variant& variant) {
  std::vector<std::string> providers;
  for (const Provider& each : variant.providers) {
    const std::string plugin = each.plugin ? ", \"plugin\": " + format_json(each.plugin->json) : "";
    providers.push_back("{\"name\": " + format_json_text(each.name) +
                        ", \"options\": " + format_json_words(each.options) + plugin + "}");
  }
  return "[[" + join(providers, ", ") + "], " + format_json_words(variant.session.config) + "]";
}

/// Returns TensorRT's version as its library has it, such as 100300 for 10.3; see
/// edgepack_providers.py.
inline std::string read_tensorrt_version() {
  for (const char* name : {"libnvinfer.so.11", "libnvinfer.so.10", "libnvinfer.so.8"}) {
    void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    const auto read =
        library == nullptr
            ? nullptr
            : reinterpret_cast<std::int32_t (*)()>(dlsym(library, "getInferLibVersion"));
    if (read != nullptr) return "TensorRT-" + std::to_string(read());
  }
  return "";
}

/// Names what a compiled model depends on: runtime, provider and its version, driver, device.
inline std::string make_runtime_key(const std::string& runtime, const std::string& provider,
                                    const std::string& version) {
  constexpr std::string_view kept =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.+-";
  std::string key;
  for (const std::string& fact :
       {"onnxruntime-" + runtime, provider, version, read_driver_version(), read_device_model()}) {
    std::string word;
    bool replaced = false;
    for (const char c : fact) {
      const bool keeps = kept.find(c) != std::string_view::npos;
      if (keeps || !replaced) word += keeps ? c : '-';
      replaced = !keeps;
    }
    word = strip(word, "-.").substr(0, 48);
    if (!word.empty()) key += (key.empty() ? "" : "_") + word;
  }
  return key;
}

/// Returns a folder without links, `.` and `..`. Throws `Error` (usage): nothing tells where it is.
inline std::filesystem::path resolve(const std::string& folder) {
  std::error_code failed;
  std::filesystem::path found = std::filesystem::absolute(folder, failed);
  if (!failed) found = std::filesystem::weakly_canonical(found, failed);
  if (failed)
    throw Error(Code::usage, "the folder " + folder + " leads nowhere: " + failed.message(),
                "name another folder");
  return found;
}

/// Returns where the caches of a project's models lie; never inside the bundle.
///
/// `<root>/<project>/cache` for a bundle that was pushed to `<root>/<project>/releases/`; else
/// under `EDGEPACK_CACHE`, or `edgepack/models` in the user's cache folder.
///
/// Throws `Error` (usage): the folder that is asked for is inside the bundle, or leads nowhere.
inline std::filesystem::path find_cache_root(const std::string& folder, const std::string& project,
                                             const std::string& asked) {
  namespace fs = std::filesystem;
  const fs::path bundle = resolve(folder);
  if (!asked.empty()) {
    const fs::path cache = resolve(expand_user(asked));
    const std::string inside = cache.string() + "/", outside = bundle.string() + "/";
    if (inside.compare(0, outside.size(), outside) == 0) {
      throw Error(Code::usage,
                  "the cache " + cache.string() + " is inside the bundle, which nothing may change",
                  "name another folder");
    }
    return cache;
  }
  const fs::path releases = bundle.parent_path();
  if (releases.filename() == "releases" && releases.parent_path().filename() == project)
    return releases.parent_path() / "cache";
  const std::string root = find_variable("EDGEPACK_CACHE");
  if (!root.empty()) return resolve(expand_user(root)) / project;
  const std::string user = find_variable("XDG_CACHE_HOME");
  if (!user.empty()) return fs::path(user) / "edgepack" / "models" / project;
  const std::string home = expand_user("~");
  return fs::path(home == "~" ? "/" : home) / ".cache" / "edgepack" / "models" / project;
}

/// Puts a folder where settings ask for the cache.
inline void fill_settings(Words& settings, const std::string& folder) {
  for (auto& [name, value] : settings) {
    for (std::size_t at = 0; (at = value.find(kCache, at)) != std::string::npos;
         at += folder.size()) {
      value.replace(at, std::string_view(kCache).size(), folder);
    }
  }
}

/// Has a folder empty; what it held comes back unless `keep` is called.
class SetAside {
 public:
  explicit SetAside(const std::filesystem::path& folder)
      : folder_(folder), aside_(folder.string() + ".aside-" + std::to_string(getpid())) {
    std::filesystem::rename(folder_, aside_);
    std::error_code none;
    std::filesystem::create_directory(folder_, none);
  }
  SetAside(const SetAside&) = delete;
  SetAside& operator=(const SetAside&) = delete;
  ~SetAside() {
    try {
      std::error_code none;
      std::filesystem::remove_all(kept_ ? aside_ : folder_, none);
      if (!kept_) std::filesystem::rename(aside_, folder_, none);
    } catch (const std::bad_alloc&) {  // it stays aside, as where it cannot be moved
    }
  }
  void keep() { kept_ = true; }

 private:
  std::filesystem::path folder_;
  std::filesystem::path aside_;
  bool kept_ = false;
};

}  // namespace edgepack::detail

#endif
