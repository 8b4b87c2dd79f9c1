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
#include <array>
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
#include "edgepack/detail/ring.hpp"
#include "edgepack/detail/text.hpp"

namespace edgepack::detail {

/// Upper ends of the histogram's buckets, included; one more has what is above.
constexpr std::array<double, 16> kBoundsMs = {0.1, 0.2, 0.5, 1,   2,   5,    10,   20,
                                              50,  100, 200, 500, 1000, 2000, 5000, 10000};
/// As Python prints them in seconds: labels of the same series have to be the same.
constexpr std::array<const char*, 16> kBoundsS = {"0.0001", "0.0002", "0.0005", "0.001",
                                                  "0.002",  "0.005",  "0.01",   "0.02",
                                                  "0.05",   "0.1",    "0.2",    "0.5",
                                                  "1.0",    "2.0",    "5.0",    "10.0"};
/// Of how many calls one is checked against the ranges. A prime: periods of callers do not fit.
constexpr std::uint64_t kCheckEvery = 17;
/// After which time a program's counts are written first, and how often from then on.
constexpr std::chrono::seconds kFirst{15}, kEvery{300};
/// How long the end of a program waits for the last write.
constexpr std::chrono::seconds kLastWrite{5};
/// Files of a project's releases that are kept, the newest ones.
constexpr std::size_t kKeptFiles = 8;
/// Variants, kinds of errors and inputs that are told apart; others are one, `other`.
constexpr std::size_t kMostKinds = 4;
constexpr std::size_t kMostPassedOver = 8;
constexpr std::size_t kModelCharacters = 64, kNameCharacters = 40, kReasonCharacters = 96,
                      kLabelCharacters = 100;

using Texts = std::vector<std::pair<std::string, std::string>>;

/// Returns where a path that begins at a place ends; the place itself where none begins there.
inline std::size_t find_path_end(std::string_view text, std::size_t begin) {
  const auto is_in = [](char c, std::string_view set) { return set.find(c) != set.npos; };
  const auto is_slash = [&](std::size_t at) { return at < text.size() && is_in(text[at], "/\\"); };
  constexpr std::string_view spaces = " \t\n\r\f\v\x1c\x1d\x1e\x1f", ends = "'\",;:)";
  const auto is_letter = [](char c) { return (c | 0x20) >= 'a' && (c | 0x20) <= 'z'; };
  if (begin > 0) {
    const char before = text[begin - 1];
    if (is_letter(before) || (before >= '0' && before <= '9') || before == '_' || before == '.')
      return begin;
  }
  std::size_t at = begin;
  if (text[at] == '~') {
    at += 1;
  } else if (is_letter(text[at]) && text.substr(at + 1, 1) == ":") {
    at += 2;
  }
  if (!is_slash(at)) return begin;
  for (;;) {
    while (at < text.size() && !is_in(text[at], spaces) && !is_in(text[at], ends)) ++at;
    // Names in it may have spaces: it goes on to the last slash that is within a word.
    std::size_t next = at;
    while (next < text.size() && !is_slash(next) && !is_in(text[next], ends)) ++next;
    if (!is_slash(next) || next == at || is_in(text[next - 1], spaces)) return at;
    at = next + 1;
  }
}

/// Returns printable ASCII of at most so many characters; paths, which may name people, go.
inline std::string make_plain(std::string_view text, std::size_t most) {
  std::string plain;
  for (std::size_t at = 0; at < text.size() && plain.size() < most;) {
    const std::size_t end = find_path_end(text, at);
    if (end > at) {
      plain += "PATH";
      at = end;
      continue;
    }
    const char c = text[at++];
    if ((c & 0xC0) == 0x80) continue;  // of a character that has begun
    plain += c >= ' ' && c <= '~' && c != '"' && c != '\\' ? c : '?';
  }
  return plain.substr(0, most);
}

/// Numbers by name, in the order in which the names came.
class Numbers {
 public:
  void add(const std::string& name, std::int64_t number, std::size_t most) {
    const auto find = [this](const std::string& wanted) {
      return std::find_if(all_.begin(), all_.end(),
                          [&](const auto& each) { return each.first == wanted; });
    };
    auto found = find(name);
    if (found == all_.end() && all_.size() >= most) found = find("other");
    if (found != all_.end()) {
      found->second += number;
    } else {
      all_.emplace_back(all_.size() < most ? name : "other", number);
    }
  }
  void add(const Numbers& more, std::size_t most) {
    for (const auto& [name, number] : more.all_) add(name, number, most);
  }
  std::int64_t get(const std::string& name) const {
    for (const auto& each : all_) {
      if (each.first == name) return each.second;
    }
    return 0;
  }
  bool empty() const { return all_.empty(); }
  const std::vector<std::pair<std::string, std::int64_t>>& all() const { return all_; }

 private:
  std::vector<std::pair<std::string, std::int64_t>> all_;
};

/// What one variant did.
struct VariantCounts {
  /// `inferences`, `took_ns` and `checked`, as far as they are not 0.
  Numbers numbers;
  Numbers buckets, errors, outside;

  void add(const VariantCounts& more) {
    numbers.add(more.numbers, 100);
    buckets.add(more.buckets, 100);
    errors.add(more.errors, kMostKinds);
    outside.add(more.outside, kMostKinds);
  }
};

/// What a release of a bundle did.
struct Record {
  std::int64_t loads = 0, failed_writes = 0, since_s = 0, written_s = 0;
  Texts passed_over;
  std::vector<std::pair<std::string, VariantCounts>> variants;

  VariantCounts& get_variant(const std::string& name) {
    const auto find = [this](const std::string& wanted) {
      return std::find_if(variants.begin(), variants.end(),
                          [&](const auto& each) { return each.first == wanted; });
    };
    auto found = find(name);
    if (found == variants.end() && variants.size() >= kMostKinds) found = find("other");
    if (found != variants.end()) return found->second;
    return variants.emplace_back(variants.size() < kMostKinds ? name : "other", VariantCounts())
        .second;
  }
};

/// What is counted: a release of a bundle and the variant in use.
struct About {
  std::string model, version, release, variant;
  Texts passed_over;
  /// Whether the variant knows ranges of its inputs.
  bool has_ranges;
};

/// Reads and writes records, for a file of the ring and for node_exporter.
class Records {
 public:
  /// Returns the newest record of a file; none where it has another form.
  static std::optional<Record> read(const Json* json) {
    if (json == nullptr) return std::nullopt;
    try {
      const Json::List& bounds = json->at("bounds_ms").items();
      const auto is_bound = [](const Json& each, double bound) { return each.number() == bound; };
      if (!std::equal(bounds.begin(), bounds.end(), kBoundsMs.begin(), kBoundsMs.end(), is_bound))
        return std::nullopt;
      Record record;
      record.loads = read_count(json->at("loads"));
      record.failed_writes = read_count(json->at("failed_writes"));
      record.since_s = read_count(json->at("since_s"));
      for (const auto& [name, why] : json->at("passed_over").members())
        record.passed_over.emplace_back(name, why.text());
      for (const auto& [name, counts] : json->at("variants").members())
        record.variants.emplace_back(name, read_variant(counts));
      return record;
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  /// Returns a record as members of a JSON object.
  static std::string format(const Record& record, const About& about) {
    std::vector<std::string> variants;
    for (const auto& [name, counts] : record.variants)
      variants.push_back(format_json_text(name) + ":" + format_variant(counts));
    std::vector<std::string> reasons;
    for (const auto& [name, why] : record.passed_over)
      reasons.push_back(format_json_text(name) + ":" + format_json_text(why));
    std::vector<std::string> bounds;
    for (const double bound : kBoundsMs) bounds.push_back(format_number(bound));
    return "\"model\":" + format_json_text(make_plain(about.model, kModelCharacters)) +
           ",\"version\":" + format_json_text(make_plain(about.version, kNameCharacters)) +
           ",\"release\":" + format_json_text(about.release) + ",\"bounds_ms\":[" +
           join(bounds, ",") + "],\"since_s\":" + std::to_string(record.since_s) +
           ",\"written_s\":" + std::to_string(record.written_s) + ",\"passed_over\":{" +
           join(reasons, ",") + "},\"loads\":" + std::to_string(record.loads) +
           ",\"failed_writes\":" + std::to_string(record.failed_writes) + ",\"variants\":{" +
           join(variants, ",") + "}";
  }

  /// Returns a record in Prometheus's text format; see `format_textfile` in edgepack_counters.py.
  static std::string format_textfile(const Record& record, const About& about) {
    std::string loads, times, errors, checked, outside, passed_over;
    const Texts whole = {{"model", make_plain(about.model, kModelCharacters)},
                         {"version", make_plain(about.version, kNameCharacters)},
                         {"release", about.release}};
    const auto line = [&whole](const std::string& name, const Texts& labels,
                               const std::string& value) {
      std::vector<std::string> pairs;
      for (const Texts& some : {whole, labels}) {
        for (const auto& [key, text] : some)
          pairs.push_back(key + "=\"" + make_plain(text, kLabelCharacters) + "\"");
      }
      return name + "{" + join(pairs, ",") + "} " + value + "\n";
    };
    loads = line("edgepack_loads_total", {}, std::to_string(record.loads));
    for (const auto& [id, counts] : record.variants) {
      const std::string took = "edgepack_inference_seconds";
      std::int64_t count = 0;
      for (std::size_t k = 0; k < kBoundsS.size(); ++k) {
        count += counts.buckets.get(std::to_string(k));
        times += line(took + "_bucket", {{"variant", id}, {"le", kBoundsS[k]}},
                      std::to_string(count));
      }
      const std::string inferences = std::to_string(counts.numbers.get("inferences"));
      const double took_s = static_cast<double>(counts.numbers.get("took_ns")) / 1e9;
      times += line(took + "_bucket", {{"variant", id}, {"le", "+Inf"}}, inferences);
      times += line(took + "_sum", {{"variant", id}}, format_number(took_s));
      times += line(took + "_count", {{"variant", id}}, inferences);
      for (const auto& [kind, number] : counts.errors.all()) {
        errors += line("edgepack_inference_errors_total", {{"variant", id}, {"kind", kind}},
                       std::to_string(number));
      }
      checked += line("edgepack_checked_total", {{"variant", id}},
                      std::to_string(counts.numbers.get("checked")));
      for (const auto& [input, number] : counts.outside.all()) {
        outside += line("edgepack_outside_total", {{"variant", id}, {"input", input}},
                        std::to_string(number));
      }
    }
    for (const auto& [id, why] : record.passed_over)
      passed_over += line("edgepack_passed_over", {{"variant", id}, {"reason", why}}, "1");
    const auto head = [](const std::string& name, const char* kind, const char* what) {
      return "# HELP " + name + " " + what + "\n# TYPE " + name + " " + kind + "\n";
    };
    return head("edgepack_loads_total", "counter", "Times that a program opened the bundle.") +
           loads +
           head("edgepack_inference_seconds", "histogram", "How long inferences took.") + times +
           head("edgepack_inference_errors_total", "counter",
                "Inferences that failed, by kind.") +
           errors +
           head("edgepack_checked_total", "counter",
                "Calls whose inputs were held against the ranges.") +
           checked +
           head("edgepack_outside_total", "counter",
                "Of them, those with values outside, by input.") +
           outside +
           head("edgepack_passed_over", "gauge",
                "Variants that did not work here at the last load.") +
           passed_over;
  }

 private:
  /// Above 2^53, of nanoseconds 104 days, it is the nearest number that a double holds.
  static std::int64_t read_count(const Json& json) {
    const double found = json.number();
    if (!(found > -9e18 && found < 9e18)) throw make_broken(json.path() + " is too large");
    return static_cast<std::int64_t>(found);
  }

  static Numbers read_numbers(const Json* json) {
    Numbers numbers;
    if (json == nullptr) return numbers;
    for (const auto& [name, number] : json->members()) numbers.add(name, read_count(number), 100);
    return numbers;
  }

  static VariantCounts read_variant(const Json& json) {
    VariantCounts counts;
    for (const char* name : {"inferences", "took_ns", "checked"}) {
      const Json* found = json.find(name);
      if (found != nullptr) counts.numbers.add(name, read_count(*found), 100);
    }
    counts.buckets = read_numbers(json.find("buckets"));
    counts.errors = read_numbers(json.find("errors"));
    counts.outside = read_numbers(json.find("outside"));
    return counts;
  }

  static std::string format_numbers(const Numbers& numbers) {
    std::vector<std::string> members;
    for (const auto& [name, number] : numbers.all())
      members.push_back(format_json_text(name) + ":" + std::to_string(number));
    return join(members, ",");
  }

  static std::string format_variant(const VariantCounts& counts) {
    std::vector<std::string> members;
    if (!counts.numbers.empty()) members.push_back(format_numbers(counts.numbers));
    const std::pair<const char*, const Numbers&> all[] = {
        {"buckets", counts.buckets}, {"errors", counts.errors}, {"outside", counts.outside}};
    for (const auto& [name, numbers] : all) {
      if (!numbers.empty())
        members.push_back("\"" + std::string(name) + "\":{" + format_numbers(numbers) + "}");
    }
    return "{" + join(members, ",") + "}";
  }
};

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
    if (getpid() != process_) return;
    std::unique_lock<std::mutex> lock(guard_);
    is_ended_ = true;
    changed_.notify_all();
    if (has_thread_) {
      changed_.wait_for(lock, kLastWrite, [this] { return !has_thread_; });
      return;
    }
    lock.unlock();
    flush();
  }

 private:
  /// All counters of the process that are open, for its end.
  class Open {
   public:
    void add(const std::shared_ptr<Counters>& counters) {
      const std::lock_guard<std::mutex> lock(guard_);
      all_.erase(std::remove_if(all_.begin(), all_.end(), [](const auto& e) { return e.expired(); }),
                 all_.end());
      all_.push_back(counters);
    }
    void close_all() noexcept {
      const std::lock_guard<std::mutex> lock(guard_);
      for (const std::weak_ptr<Counters>& each : all_) {
        if (const std::shared_ptr<Counters> counters = each.lock()) counters->close();
      }
    }

   private:
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
    const char* home = getenv("HOME");
    const bool is_users = folder == "~" || folder.compare(0, 2, "~/") == 0;
    const std::string named = is_users && home != nullptr ? home + folder.substr(1) : folder;
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
    try {
      make_place();
      Record record;
      const bool written = Ring(path_).update([&](const Json* before) {
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
      if (written) {
        if (!textfiles_.empty()) write_textfile(record);
        return;
      }
    } catch (const DiskError& error) {
      failed_writes += 1;
      tell(error.what());
    } catch (const std::bad_alloc&) {
      failed_writes += 1;
    }
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
