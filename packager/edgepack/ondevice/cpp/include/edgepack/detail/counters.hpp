// Counts what a loaded model does, for who asks for it; no inputs, no names of anybody. The Python
// loader's edgepack_counters.py does the same, into the same files.

#ifndef EDGEPACK_DETAIL_COUNTERS_HPP
#define EDGEPACK_DETAIL_COUNTERS_HPP

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "edgepack/detail/error.hpp"
#include "edgepack/detail/json.hpp"
#include "edgepack/detail/ort.hpp"
#include "edgepack/detail/records.hpp"
#include "edgepack/detail/requirements.hpp"
#include "edgepack/detail/ring.hpp"

namespace edgepack::detail {

/// Of how many calls one is checked against the ranges. A prime: periods of callers do not fit.
constexpr std::uint64_t kCheckEvery = 17;
/// After which time a program's counts are written first, and how often from then on.
constexpr std::chrono::seconds kFirst{15}, kEvery{300};
/// How long the end of a program waits for the last write.
constexpr std::chrono::seconds kLastWrite{5};
/// Files of a project's releases that are kept, the newest ones.
constexpr std::size_t kKeptFiles = 8;
/// The counters of one loaded model. Threads may share them.
///
/// Calls count in memory; a thread adds what is new to the file. Whatever goes wrong there is said
/// once on stderr, and no inference fails or waits for it. A process that was forked after it
/// opened a model has no such thread: it counts nothing.
class Counters : public std::enable_shared_from_this<Counters> {
 public:
  /// Begins to count into a folder, with a folder for node_exporter's files if that is not empty.
  /// What is returned writes a last time where it is released, as at the program's end.
  static std::shared_ptr<Counters> open(const std::string& folder, const About& about,
                                        const std::string& textfiles) {
    const std::shared_ptr<Counters> counters(new Counters(folder, about, textfiles));
    list_open().add(counters);
    counters->count([&] { counters->loads_ += 1; });
    counters->start_thread();
    return std::shared_ptr<Counters>(counters.get(), [counters](Counters*) { counters->close(); });
  }

  /// Calls what is one inference, counts it or its failure, and returns what it returns.
  template <class Call>
  auto watch(const Call& call) {
    const std::int64_t began_ns = read_clock_ns(CLOCK_MONOTONIC);
    try {
      auto found = call();
      count_inference(read_clock_ns(CLOCK_MONOTONIC) - began_ns);
      return found;
    } catch (const OrtFailure& failure) {
      count([&] { new_.errors.add(failure.kind(), 1, kMostKinds); });
      throw;
    }
  }

  /// Whether the next call is one that is to be checked against the ranges.
  bool is_check_due() noexcept {
    return about_.has_ranges && calls_++ % kCheckEvery == 0;
  }

  /// Counts a call that was checked, and the inputs that had values outside their ranges.
  void count_checked(const std::vector<std::string>& outside) noexcept {
    count([&] {
      new_.numbers.add("checked", 1, 100);
      for (const std::string& name : outside)
        new_.outside.add(make_plain(name, kNameCharacters), 1, kMostKinds);
    });
  }

  /// Has the thread write what is new and end; a disk that hangs is not waited for.
  void close() noexcept {
    end();
    wait(std::chrono::steady_clock::now() + kLastWrite);
  }

 private:
  void end() noexcept {
    if (getpid() != process_) return;
    const std::lock_guard<std::mutex> lock(guard_);
    is_ended_ = true;
    changed_.notify_all();
  }

  /// Waits until the last write is made; without a thread it is made here.
  void wait(std::chrono::steady_clock::time_point most) noexcept {
    if (getpid() != process_) return;
    std::unique_lock<std::mutex> lock(guard_);
    if (has_thread_) {
      changed_.wait_until(lock, most, [this] { return !has_thread_; });
      return;
    }
    lock.unlock();
    flush();
  }

  /// All counters of the process that are open, for its end.
  class Open {
   public:
    void add(const std::shared_ptr<Counters>& counters) {
      const std::lock_guard<std::mutex> lock(guard_);
      all_.erase(std::remove_if(all_.begin(), all_.end(), [](const auto& e) { return e.expired(); }),
                 all_.end());
      all_.push_back(counters);
    }
    /// All of them write at once: together they are waited for as long as one.
    void close_all() noexcept {
      const auto most = std::chrono::steady_clock::now() + kLastWrite;
      call_each([](Counters& counters) { counters.end(); });
      call_each([most](Counters& counters) { counters.wait(most); });
    }

   private:
    template <class Call>
    void call_each(const Call& call) noexcept {
      const std::lock_guard<std::mutex> lock(guard_);
      for (const std::weak_ptr<Counters>& each : all_) {
        if (const std::shared_ptr<Counters> counters = each.lock()) call(*counters);
      }
    }

    std::mutex guard_;
    std::vector<std::weak_ptr<Counters>> all_;
  };

  static Open& list_open() {
    // Never released: what ends later may still ask for it.
    static Open* const open = [] {
      (void)atexit([] { list_open().close_all(); });
      return new Open();
    }();
    return *open;
  }

  Counters(const std::string& folder, const About& about, const std::string& textfiles)
      : about_(about), folder_(make_absolute(folder)), process_(getpid()) {
    about_.variant = make_plain(about.variant, kNameCharacters);
    about_.passed_over.clear();
    for (const auto& [name, why] : about.passed_over) {
      if (about_.passed_over.size() == kMostPassedOver) break;
      about_.passed_over.emplace_back(make_plain(name, kNameCharacters),
                                      make_plain(why, kReasonCharacters));
    }
    constexpr std::string_view kept =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    for (std::size_t at = 0; at < about.model.size() && stem_.size() < kModelCharacters;) {
      const char32_t c = read_utf8(about.model, at);
      const bool keeps = c < 0x80 && kept.find(static_cast<char>(c)) != std::string_view::npos;
      stem_ += keeps ? static_cast<char>(c) : '_';
    }
    path_ = folder_ + "/" + stem_ + "-" + about.release + ".ring";
    if (!textfiles.empty()) textfiles_ = make_absolute(textfiles);
    textfile_ = "edgepack-" + stem_ + "-" + about.release + ".prom";
  }

  /// A folder as the program names it, which may go to another one later; `~` is the user's.
  static std::string make_absolute(const std::string& folder) {
    const std::string named = expand_user(folder);
    std::error_code none;
    const std::string whole = std::filesystem::absolute(named, none).lexically_normal().string();
    return whole.size() > 1 && whole.back() == '/' ? whole.substr(0, whole.size() - 1) : whole;
  }

  /// Changes counts under the lock. Memory that is missing loses a count, not a run.
  template <class Change>
  void count(const Change& change) noexcept {
    // In a process that was forked, a thread that is not there may hold the lock for ever.
    if (getpid() != process_) return;
    try {
      const std::lock_guard<std::mutex> lock(guard_);
      has_new_ = true;
      change();
    } catch (const std::bad_alloc&) {
      return;
    }
  }

  void count_inference(std::int64_t took_ns) noexcept {
    count([&] {
      const auto is_within = [took_ns](double bound_ms) {
        return static_cast<double>(took_ns) <= bound_ms * 1e6;
      };
      const auto bucket =
          std::find_if(kBoundsMs.begin(), kBoundsMs.end(), is_within) - kBoundsMs.begin();
      new_.numbers.add("inferences", 1, 100);
      new_.numbers.add("took_ns", took_ns, 100);
      new_.buckets.add(std::to_string(bucket), 1, 100);
    });
  }

  void start_thread() noexcept {
    // Signals are for the program's own threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      has_thread_ = true;
      std::thread([self = shared_from_this()] { self->keep(); }).detach();
    } catch (const std::system_error& error) {
      has_thread_ = false;
      tell(error.what());
    } catch (const std::bad_alloc&) {  // what is new is written at the end
      has_thread_ = false;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void keep() noexcept {
    std::unique_lock<std::mutex> lock(guard_);
    const auto is_ended = [this] { return is_ended_; };
    for (auto wait = kFirst; !changed_.wait_for(lock, wait, is_ended); wait = kEvery) {
      lock.unlock();
      flush();
      lock.lock();
    }
    lock.unlock();
    flush();
    lock.lock();
    has_thread_ = false;
    changed_.notify_all();
  }

  /// Adds what is new to the file, if it takes a write now; else it stays in memory.
  void flush() noexcept {
    VariantCounts counts;
    std::int64_t loads = 0, failed_writes = 0;
    {
      const std::lock_guard<std::mutex> lock(guard_);
      if (!has_new_) return;
      has_new_ = false;
      std::swap(counts, new_);
      std::swap(loads, loads_);
      std::swap(failed_writes, failed_writes_);
    }
    bool written = false;
    try {
      make_place();
      Record record;
      written = Ring(path_).update([&](const Json* before) {
        const std::optional<Record> found = Records::read(before);
        record = found.value_or(Record{});
        record.written_s = read_clock_ns(CLOCK_REALTIME) / 1'000'000'000;
        if (!found) record.since_s = record.written_s;
        if (!found || loads > 0) record.passed_over = about_.passed_over;
        record.loads += loads;
        record.failed_writes += failed_writes;
        record.get_variant(about_.variant).add(counts);
        return Records::format(record, about_);
      });
      if (written && !textfiles_.empty()) write_textfile(record);
    } catch (const DiskError& error) {
      failed_writes += 1;
      tell(error.what());
    } catch (const std::bad_alloc&) {
      failed_writes += 1;
    }
    if (written) return;
    count([&] {
      new_.add(counts);
      loads_ += loads;
      failed_writes_ += failed_writes;
    });
  }

  /// Says what is wrong, once.
  void tell(const char* what) noexcept {
    try {
      const std::lock_guard<std::mutex> lock(telling_);
      if (!told_.insert(what).second) return;
      const std::string said = "what " + about_.model + " does is not counted on disk: " + what;
      (void)fprintf(stderr, "%s\n", said.c_str());
    } catch (const std::bad_alloc&) {
      return;  // nor is there memory to say so
    }
  }

  /// The files of this project's releases in a folder: what is before and behind 16 characters.
  std::vector<std::string> list_files(const std::string& folder, const std::string& before,
                                      std::string_view behind, bool more) const {
    std::vector<std::string> found;
    std::error_code none;
    std::filesystem::directory_iterator each(folder, none), end;
    for (; !none && each != end; each.increment(none)) {
      const std::string name = each->path().filename().string();
      const std::size_t size = before.size() + 16 + behind.size();
      if ((more ? name.size() >= size : name.size() == size) &&
          name.compare(0, before.size(), before) == 0 &&
          name.compare(before.size() + 16, behind.size(), behind) == 0)
        found.push_back(folder + "/" + name);
    }
    return found;
  }

  /// Makes the folder, and room for a file: of many releases only the newest are kept.
  void make_place() {
    if (!textfiles_.empty() && !is_cleared_) {
      is_cleared_ = true;
      // Of other releases; who still runs one writes it again.
      const std::string own = textfiles_ + "/" + textfile_;
      for (const std::string& path :
           list_files(textfiles_, "edgepack-" + stem_ + "-", ".prom", true)) {
        if (path.compare(0, own.size(), own) != 0) static_cast<void>(unlink(path.c_str()));
      }
    }
    struct stat found{};
    if (stat(path_.c_str(), &found) == 0) return;
    std::error_code failed;
    std::filesystem::create_directories(folder_, failed);
    if (failed) throw DiskError(failed.value(), folder_);
    std::vector<std::pair<std::int64_t, std::string>> there;
    for (const std::string& path : list_files(folder_, stem_ + "-", ".ring", false)) {
      if (stat(path.c_str(), &found) == 0)
        there.emplace_back(-std::int64_t{found.st_mtim.tv_sec}, path);
    }
    std::sort(there.begin(), there.end());
    for (std::size_t k = kKeptFiles - 1; k < there.size(); ++k)
      static_cast<void>(unlink(there[k].second.c_str()));
  }

  void write_textfile(const Record& record) {
    // As node_exporter's README asks: written elsewhere and renamed, in the same folder.
    const std::string path = textfiles_ + "/" + textfile_;
    const std::string partial = path + "." + std::to_string(process_);
    const std::string text = Records::format_textfile(record, about_);
    FILE* file = fopen(partial.c_str(), "we");
    if (file == nullptr) return tell(DiskError(errno, partial).what());
    bool written = fwrite(text.data(), 1, text.size(), file) == text.size();
    written = fclose(file) == 0 && written;
    if (written && rename(partial.c_str(), path.c_str()) == 0) return;
    tell(DiskError(errno, partial).what());
    static_cast<void>(unlink(partial.c_str()));
  }

  About about_;
  std::string folder_, stem_, path_, textfiles_, textfile_;
  pid_t process_;

  std::mutex guard_;
  std::condition_variable changed_;
  VariantCounts new_;
  std::int64_t loads_ = 0, failed_writes_ = 0;
  bool has_new_ = false, has_thread_ = false, is_ended_ = false;

  std::atomic<std::uint64_t> calls_{0};

  // The writer's own.
  bool is_cleared_ = false;

  std::mutex telling_;
  std::set<std::string> told_;
};

}  // namespace edgepack::detail

#endif
