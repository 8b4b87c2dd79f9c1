// What is kept of what a loaded model does: texts without names of anybody, numbers of a few kinds,
// and how they are written. The Python loader's edgepack_counters.py writes and reads the same.

#ifndef EDGEPACK_DETAIL_RECORDS_HPP
#define EDGEPACK_DETAIL_RECORDS_HPP

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "edgepack/detail/error.hpp"
#include "edgepack/detail/json.hpp"
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

}  // namespace edgepack::detail

#endif
