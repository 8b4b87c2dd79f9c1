// A ring of records in one small file: what counters have summed up, over processes and restarts.
// The Python loader's edgepack_ring.py writes and reads the same files, and says why they are so.

#ifndef EDGEPACK_DETAIL_RING_HPP
#define EDGEPACK_DETAIL_RING_HPP

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "edgepack/detail/error.hpp"
#include "edgepack/detail/json.hpp"
#include "edgepack/detail/text.hpp"

namespace edgepack::detail {

constexpr std::size_t kSlots = 8;
constexpr std::size_t kSlotBytes = 8192;
constexpr std::size_t kRingBytes = kSlots * kSlotBytes;
/// Writes that may follow each other, and how long until one more may, in seconds.
constexpr double kBurst = 4, kRefillS = 60;
/// Before a record's JSON: magic, CRC-32 of what follows it, its number, its bytes; little-endian.
constexpr std::size_t kHeadBytes = 20;
constexpr std::string_view kMagic = "EPS1";

/// A file that cannot be written; the text is Python's.
class DiskError : public std::runtime_error {
 public:
  explicit DiskError(int number, const std::string& path = "")
      : std::runtime_error("[Errno " + std::to_string(number) + "] " + strerror(number) +
                           (path.empty() ? "" : ": " + quote(path))) {}
};

/// The time of a clock in nanoseconds.
inline std::int64_t read_clock_ns(clockid_t clock) {
  timespec now{};
  (void)clock_gettime(clock, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

/// Returns the CRC-32 of some bytes. Source: ITU-T V.42, 8.1.1.6.2; as zlib's.
inline std::uint32_t compute_crc32(std::string_view bytes) {
  std::uint32_t crc = 0xFFFFFFFF;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (0xEDB88320 & (0 - (crc & 1)));
  }
  return ~crc;
}

/// Adds a number of so many bytes, the least first.
inline void append_little(std::string& bytes, std::uint64_t number, int size) {
  for (int k = 0; k < size; ++k) bytes += static_cast<char>(number >> (8 * k) & 0xFF);
}

/// An open file of records.
class Ring {
 public:
  /// Opens a file to write it, and makes it. Throws `DiskError`: it cannot, or is no plain file.
  explicit Ring(const std::string& path) : path_(path) {
    // Who opens a pipe would wait for its other end.
    constexpr int how = O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    handle_ = ::open(path.c_str(), how, 0644);
    if (handle_ < 0) throw DiskError(errno, path);
    struct stat found{};
    if (fstat(handle_, &found) != 0 || !S_ISREG(found.st_mode)) {
      close(handle_);
      throw DiskError(EINVAL, path);
    }
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() { close(handle_); }

  /// Replaces the newest record by what `change` makes of it (nullptr where there is none): JSON's
  /// members without the braces, to which the budget of writes is added.
  ///
  /// Returns whether it did: not where too many writes were made, or another process holds the
  /// file. Throws `DiskError`: the newest record is as before.
  bool update(const std::function<std::string(const Json*)>& change) {
    if (!lock()) return false;
    fill();
    const auto [number, before] = find_newest();
    const double now_s = static_cast<double>(read_clock_ns(CLOCK_MONOTONIC)) / 1e9;
    const double left = count_left(before ? before->find("budget") : nullptr, now_s);
    if (!(left >= 1)) return false;
    const std::string members = change(before ? &*before : nullptr);
    write(number + 1, "{" + members + ",\"budget\":{\"left\":" + format_fixed(left - 1, 3) +
                          ",\"at_s\":" + format_fixed(now_s, 3) + "}}");
    return true;
  }

 private:
  bool lock() const {
    // Others hold it for milliseconds, on a worn SD card for more.
    for (int tries = 0; tries < 100; ++tries) {
      if (flock(handle_, LOCK_EX | LOCK_NB) == 0) return true;
      if (errno != EWOULDBLOCK && errno != EINTR) throw DiskError(errno, path_);
      const timespec pause{0, 10'000'000};
      nanosleep(&pause, nullptr);
    }
    return false;
  }

  /// Gives the file its size, by bytes that are really there: a disk that is full later does not
  /// matter.
  void fill() {
    struct stat found{};
    if (fstat(handle_, &found) != 0) throw DiskError(errno);
    const auto size = static_cast<std::size_t>(found.st_size);
    if (size == kRingBytes) return;
    if (size > kRingBytes) {
      if (ftruncate(handle_, static_cast<off_t>(kRingBytes)) != 0) throw DiskError(errno);
    } else {
      write_all(std::string(kRingBytes - size, '\0'), size);
    }
    if (fsync(handle_) != 0) throw DiskError(errno);
    const std::string folder = path_.substr(0, path_.rfind('/') + 1);
    const int above = ::open(folder.c_str(), O_RDONLY | O_CLOEXEC);
    if (above < 0) throw DiskError(errno, folder);
    const int done = fsync(above);
    const int number = errno;
    close(above);
    if (done != 0) throw DiskError(number);
  }

  std::pair<std::uint64_t, std::optional<Json>> find_newest() const {
    std::pair<std::uint64_t, std::optional<Json>> newest;
    std::string slot(kSlotBytes, '\0');
    for (std::size_t k = 0; k < kSlots; ++k) {
      const ssize_t size =
          pread(handle_, slot.data(), kSlotBytes, static_cast<off_t>(k * kSlotBytes));
      if (size < 0) throw DiskError(errno);
      auto found = parse(std::string_view(slot).substr(0, static_cast<std::size_t>(size)));
      if (found.second && found.first > newest.first) newest = std::move(found);
    }
    return newest;
  }

  std::pair<std::uint64_t, std::optional<Json>> parse(std::string_view slot) const {
    if (slot.size() < kHeadBytes || slot.substr(0, 4) != kMagic) return {};
    const std::uint64_t size = read_little(slot.substr(16, 4));
    if (size > slot.size() - kHeadBytes) return {};
    const std::string_view summed = slot.substr(8, 12 + size);
    if (compute_crc32(summed) != read_little(slot.substr(4, 4))) return {};
    try {
      Json json = Json::parse(slot.substr(kHeadBytes, size), path_);
      if (json.kind() != Json::Kind::object) return {};
      return {read_little(slot.substr(8, 8)), std::move(json)};
    } catch (const Error& error) {
      // What is not read for lack of memory is no reason to begin anew.
      if (error.code() == Code::out_of_memory) throw std::bad_alloc();
      return {};
    }
  }

  void write(std::uint64_t number, const std::string& said) {
    if (said.size() > kSlotBytes - kHeadBytes) throw DiskError(EFBIG, path_);
    std::string summed;
    append_little(summed, number, 8);
    append_little(summed, said.size(), 4);
    summed += said;
    std::string slot(kMagic);
    append_little(slot, compute_crc32(summed), 4);
    write_all(slot + summed, number % kSlots * kSlotBytes);
    // From here on who reads finds the record, even if the disk says that it could not keep it: to
    // add the same counts once more would be wrong.
    static_cast<void>(fdatasync(handle_));
  }

  void write_all(std::string_view data, std::size_t place) {
    while (!data.empty()) {
      const ssize_t size = pwrite(handle_, data.data(), data.size(), static_cast<off_t>(place));
      if (size < 0 && errno == EINTR) continue;
      if (size < 0) throw DiskError(errno);
      data.remove_prefix(static_cast<std::size_t>(size));
      place += static_cast<std::size_t>(size);
    }
  }

  /// Returns how many writes are left.
  static double count_left(const Json* budget, double now_s) {
    double left = kBurst, at_s = now_s;
    try {
      if (budget != nullptr) {
        const double found = budget->at("left").number();
        at_s = budget->at("at_s").number();
        left = found;
      }
    } catch (const Error&) {
      at_s = now_s;
    }
    // The clock is behind where the machine was started again.
    const double earned = (at_s <= now_s ? now_s - at_s : now_s) / kRefillS;
    return std::min(kBurst, left + earned);
  }

  std::string path_;
  int handle_;
};

}  // namespace edgepack::detail

#endif
