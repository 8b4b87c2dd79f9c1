// What this machine is: its processor, its flags and cores, its board; and its user's folders.

#ifndef EDGEPACK_DETAIL_REQUIREMENTS_HPP
#define EDGEPACK_DETAIL_REQUIREMENTS_HPP

#include <pwd.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "edgepack/detail/error.hpp"
#include "edgepack/detail/manifest.hpp"
#include "edgepack/detail/text.hpp"

namespace edgepack::detail {

/// Why one variant cannot be used here.
class Refused : public std::runtime_error {
 public:
  explicit Refused(const std::string& reason) : std::runtime_error(reason) {}
};

/// The session config key with the processors of each thread, see edgepack_names.py.
inline constexpr const char* kAffinities = "session.intra_op_thread_affinities";

/// Returns an environment variable; nothing where there is none.
inline std::string find_variable(const char* name) {
  const char* value = getenv(name);
  return value == nullptr ? "" : value;
}

/// Returns a path whose `~` or `~NAME` at the beginning is a home folder, as Python's
/// os.path.expanduser does it: the path itself where nobody has one.
inline std::string expand_user(const std::string& path) {
  if (path.empty() || path[0] != '~') return path;
  const std::size_t end = std::min(path.find('/'), path.size());
  const char* home = end == 1 ? getenv("HOME") : nullptr;
  passwd entry{};
  std::string buffer(1 << 14, '\0');
  if (home == nullptr) {
    passwd* found = nullptr;
    if (end == 1)
      (void)getpwuid_r(getuid(), &entry, buffer.data(), buffer.size(), &found);
    else
      (void)getpwnam_r(path.substr(1, end - 1).c_str(), &entry, buffer.data(), buffer.size(), &found);
    if (found == nullptr) return path;
    home = entry.pw_dir;
  }
  std::string folder = home;
  folder.erase(folder.find_last_not_of('/') + 1);
  folder += path.substr(end);
  return folder.empty() ? "/" : folder;
}

/// Returns a file's text; nothing where it cannot be read.
inline std::string read_text(const std::string& path) {
  try {
    return read_file(path);
  } catch (const Error&) {
    return "";
  }
}

inline std::string strip(const std::string& text,
                         std::string_view marks = std::string_view(" \t\n\r\0", 5)) {
  const std::size_t begin = text.find_first_not_of(marks);
  return begin == std::string::npos ? ""
                                    : text.substr(begin, text.find_last_not_of(marks) - begin + 1);
}

/// Returns the values of a key in a text of lines `key : value`, such as /proc/cpuinfo.
inline std::vector<std::string> list_values(const std::string& text, std::string_view key) {
  std::vector<std::string> values;
  for (const std::string& line : split_lines(text)) {
    const std::size_t colon = line.find(':');
    if (colon != std::string::npos && strip(line.substr(0, colon)) == key)
      values.push_back(strip(line.substr(colon + 1)));
  }
  return values;
}

/// Returns this CPU's flags as Linux spells them: `flags` of x86, `Features` of ARM.
inline std::set<std::string> read_cpu_flags() {
  const std::string text = read_text("/proc/cpuinfo");
  std::set<std::string> flags;
  for (const char* key : {"flags", "Features"}) {
    for (const std::string& value : list_values(text, key)) {
      for (std::string& word : split_words(value)) flags.insert(std::move(word));
    }
  }
  return flags;
}

/// The kind of processor as Python's `platform.machine()` has it, in small letters.
inline std::string find_processor() {
  utsname found{};
  if (uname(&found) != 0) return "";
  return lower_ascii(found.machine);
}

/// The kind of machine that libraries of custom operators are named by, such as `linux-x86-64`.
inline std::string find_machine() {
  const std::string processor = find_processor();
  return "linux-" + (processor == "x86_64" || processor == "amd64" ? "x86-64" : processor);
}

/// Whether int8 kernels saturate on this processor unless they are told to be exact.
inline bool is_x86_without_vnni() {
  const std::string processor = find_processor();
  if (processor != "x86_64" && processor != "amd64" && processor != "i686") return false;
  const std::set<std::string> flags = read_cpu_flags();
  return flags.count("avx512_vnni") == 0 && flags.count("avx_vnni") == 0;
}

/// Returns how many threads share an operator in a session; 0 leaves it to onnxruntime.
///
/// Where a process may use fewer processors than there are, there is a thread for each core that it
/// may use; see `choose_threads` in edgepack_providers.py for the figures.
inline int choose_threads(const Settings& session) {
  const int asked = session.intra_op_num_threads;
  // glibc's set of 1,024 processors: more are not bound to, as there are too many to count.
  cpu_set_t allowed;
  if (asked != 0 || session.config.count(kAffinities) != 0 ||
      sched_getaffinity(0, sizeof allowed, &allowed) != 0)
    return asked;
  if (CPU_COUNT(&allowed) >= std::max(1L, sysconf(_SC_NPROCESSORS_ONLN))) return 0;
  std::set<std::string> cores;
  for (int k = 0; k < CPU_SETSIZE; ++k) {
    if (!CPU_ISSET(k, &allowed)) continue;
    const std::string core = read_text("/sys/devices/system/cpu/cpu" + std::to_string(k) +
                                       "/topology/thread_siblings_list");
    cores.insert(core.empty() ? std::to_string(k) : core);
  }
  return static_cast<int>(cores.size());
}

/// Returns L4T's version on a Jetson, else that of NVIDIA's driver; nothing without either.
///
/// Source: `# R36 (release), REVISION: 4.7, ...` in /etc/nv_tegra_release, and `NVRM version:
/// NVIDIA UNIX x86_64 Kernel Module  550.54.15  ...` in /proc/driver/nvidia/version.
inline std::string read_driver_version() {
  constexpr std::string_view digits = "0123456789", numbers = "0123456789.";
  const std::string tegra = read_text("/etc/nv_tegra_release");
  const std::size_t release = tegra.find('R'), revision = tegra.find("REVISION: ");
  if (release != std::string::npos && revision != std::string::npos) {
    const std::string after = tegra.substr(release + 1), last = tegra.substr(revision + 10);
    return "L4T-" + after.substr(0, after.find_first_not_of(digits)) + "." +
           last.substr(0, last.find_first_not_of(numbers));
  }
  for (const std::string& value :
       list_values(read_text("/proc/driver/nvidia/version"), "NVRM version")) {
    for (const std::string& word : split_words(value)) {
      const bool is_version = word.find('.') != std::string::npos &&
                              word.find_first_not_of(numbers) == std::string::npos;
      if (is_version) return "NVIDIA-" + word;
    }
  }
  return "";
}

/// Returns what tells this machine's hardware from other hardware that may share its home folder: a
/// board's name, else the processor's, with NVIDIA's GPU where there is one.
inline std::string read_device_model() {
  std::string board =
      strip(read_text("/proc/device-tree/model"), std::string_view("\0\n ", 3));
  if (!board.empty()) return board;
  std::vector<std::string> models;
  std::error_code none;
  std::filesystem::directory_iterator gpu("/proc/driver/nvidia/gpus", none), end;
  for (; !none && gpu != end; gpu.increment(none)) {
    const std::vector<std::string> found =
        list_values(read_text(gpu->path().string() + "/information"), "Model");
    if (models.empty() && !found.empty()) models.push_back(found[0]);
  }
  const std::vector<std::string> processors = list_values(read_text("/proc/cpuinfo"), "model name");
  if (!processors.empty()) models.push_back(processors[0]);
  return join(models, " ");
}

}  // namespace edgepack::detail

#endif
