// A reader of JSON, strict about UTF-8 and numbers, bounded in length and depth.

#ifndef EDGEPACK_DETAIL_JSON_HPP
#define EDGEPACK_DETAIL_JSON_HPP

#include <locale.h>
#include <stdlib.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "edgepack/detail/error.hpp"

namespace edgepack::detail {

/// The longest text that is read, in bytes; a tokenizer's file may have some megabytes.
constexpr std::size_t kLongestJson = std::size_t{256} << 20;
/// The most values of a text: each takes some 200 bytes, of which two may be enough in the text.
constexpr std::size_t kMostJson = std::size_t{1} << 20;
/// How deep lists and objects may lie in each other; it bounds the stack.
constexpr int kDeepestJson = 64;

/// Returns where the first byte lies that is no strict UTF-8, or `npos` where all of it is.
///
/// Source: table 3-7 of the Unicode Standard: no overlong forms, no surrogates, nothing beyond
/// U+10FFFF.
inline std::size_t find_bad_utf8(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const auto first = static_cast<unsigned char>(text[at]);
    std::size_t more = 0;
    unsigned char low = 0x80, high = 0xBF;
    if (first < 0x80) {
      ++at;
      continue;
    }
    if (first >= 0xC2 && first <= 0xDF) {
      more = 1;
    } else if (first >= 0xE0 && first <= 0xEF) {
      more = 2;
      low = first == 0xE0 ? 0xA0 : low;
      high = first == 0xED ? 0x9F : high;
    } else if (first >= 0xF0 && first <= 0xF4) {
      more = 3;
      low = first == 0xF0 ? 0x90 : low;
      high = first == 0xF4 ? 0x8F : high;
    } else {
      return at;
    }
    if (text.size() - at <= more) return at;
    for (std::size_t k = 1; k <= more; ++k) {
      const auto next = static_cast<unsigned char>(text[at + k]);
      if (next < low || next > high) return at;
      low = 0x80;
      high = 0xBF;
    }
    at += more + 1;
  }
  return std::string_view::npos;
}

/// Adds a character in UTF-8.
inline void append_utf8(std::string& text, char32_t c) {
  const auto add = [&text](char32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    add(c);
  } else if (c < 0x800) {
    add(0xC0 | c >> 6);
    add(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    add(0xE0 | c >> 12);
    add(0x80 | (c >> 6 & 0x3F));
    add(0x80 | (c & 0x3F));
  } else {
    add(0xF0 | c >> 18);
    add(0x80 | (c >> 12 & 0x3F));
    add(0x80 | (c >> 6 & 0x3F));
    add(0x80 | (c & 0x3F));
  }
}

/// Returns the character at a place of strict UTF-8, and moves the place behind it.
inline char32_t read_utf8(std::string_view text, std::size_t& at) {
  const auto first = static_cast<unsigned char>(text[at++]);
  if (first < 0x80) return first;
  const int more = first >= 0xF0 ? 3 : first >= 0xE0 ? 2 : 1;
  char32_t c = first & (0x3F >> more);
  for (int k = 0; k < more; ++k) c = c << 6 | (static_cast<unsigned char>(text[at++]) & 0x3F);
  return c;
}

/// A text as Python's `json.dumps` writes it: ASCII alone.
inline std::string format_json_text(const std::string& text) {
  constexpr std::string_view marks = "\"\\\b\f\n\r\t", letters = "\"\\bfnrt";
  std::string json = "\"";
  const auto add_unit = [&json](char32_t unit) {
    json += "\\u";
    for (unsigned shift = 16; shift > 0; shift -= 4)
      json += "0123456789abcdef"[unit >> (shift - 4) & 0xF];
  };
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = read_utf8(text, at);
    const std::size_t mark = c < 0x80 ? marks.find(static_cast<char>(c)) : std::string_view::npos;
    if (mark != std::string_view::npos) {
      json += {'\\', letters[mark]};
    } else if (c >= 0x20 && c < 0x7F) {
      json += static_cast<char>(c);
    } else if (c < 0x10000) {
      add_unit(c);
    } else {
      add_unit(0xD800 + ((c - 0x10000) >> 10));
      add_unit(0xDC00 + ((c - 0x10000) & 0x3FF));
    }
  }
  return json + "\"";
}

/// A JSON value, immutable. What asks a value for another kind than it has gets an `Error`
/// (broken_bundle) that names the file and the value's path.
class Json {
 public:
  enum class Kind { null, boolean, number, text, list, object };
  using List = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;

  /// Reads a whole text.
  ///
  /// `where` names it in errors. Throws `Error` (broken_bundle): it is no JSON of strict UTF-8, is
  /// longer than `kLongestJson`, deeper than `kDeepestJson`, or has more values than `kMostJson`.
  static Json parse(std::string_view text, const std::string& where);

  Kind kind() const { return static_cast<Kind>(value_.index()); }
  bool boolean() const { return get<bool>("true or false"); }
  double number() const { return get<double>("a number"); }

  /// The number, where it is a whole one of at most 2^53, which doubles hold exactly.
  std::int64_t integer() const {
    const double found = get<double>("a whole number");
    if (std::floor(found) != found || std::fabs(found) > 9007199254740992.0)
      throw wrong("a whole number");
    return static_cast<std::int64_t>(found);
  }

  /// UTF-8; it may hold a zero byte.
  const std::string& text() const { return get<std::string>("a text"); }
  const List& items() const { return get<List>("a list"); }

  /// The members in the order of the file; a name may be there twice.
  const Object& members() const { return get<Object>("an object"); }

  /// Returns an object's member: nullptr where it is missing or null. Of several the last counts.
  const Json* find(std::string_view name) const {
    const Object& all = members();
    for (auto each = all.rbegin(); each != all.rend(); ++each) {
      if (each->first == name) return each->second.kind() == Kind::null ? nullptr : &each->second;
    }
    return nullptr;
  }

  /// Returns an object's member; it has to be there and not null.
  const Json& at(std::string_view name) const {
    const Json* found = find(name);
    if (found == nullptr) throw make_broken(path() + " has no " + std::string(name));
    return *found;
  }

  /// The file and the names and numbers that lead to the value, such as `manifest.json:
  /// goldens[0].inputs`.
  std::string path() const { return place_ == nullptr ? "a JSON value" : format_place(*place_); }

  Json() = default;
  Json(Json&&) noexcept = default;
  Json& operator=(Json&&) noexcept = default;
  // Where memory fails while it is copied, a variant of libstdc++ 12 is destroyed as if it were
  // there (12.2, observed): its alternatives are copied one by one.
  Json(const Json& other) : place_(other.place_) {
    std::visit([this](const auto& each) { value_ = each; }, other.value_);
  }
  Json& operator=(const Json& other) { return *this = Json(other); }
  ~Json() = default;

 private:
  friend class JsonReader;

  struct Place {
    std::shared_ptr<const Place> within;
    std::string name;  // of a list's item `[0]`, of the whole its file
  };

  static std::string format_place(const Place& place) {
    if (place.within == nullptr) return place.name;
    const std::string before = format_place(*place.within);
    const bool first = place.within->within == nullptr;
    return before + (first ? ": " : place.name[0] == '[' ? "" : ".") + place.name;
  }

  template <class T>
  const T& get(const char* wanted) const {
    const T* found = std::get_if<T>(&value_);
    if (found == nullptr) throw wrong(wanted);
    return *found;
  }

  Error wrong(const char* wanted) const { return make_broken(path() + " is not " + wanted); }

  std::variant<std::monostate, bool, double, std::string, List, Object> value_;
  std::shared_ptr<const Place> place_;
};

/// Reads one text; `Json::parse` is its use.
class JsonReader {
 public:
  JsonReader(std::string_view text, const std::string& where)
      : text_(text), where_(where), c_(newlocale(LC_ALL_MASK, "C", nullptr)) {
    if (c_ == nullptr)
      throw Error(Code::out_of_memory, "there is no memory to read " + where, "free some memory");
  }
  JsonReader(const JsonReader&) = delete;
  JsonReader& operator=(const JsonReader&) = delete;
  ~JsonReader() { freelocale(c_); }

  Json read() {
    if (text_.size() > kLongestJson) throw make_broken(where_ + " is longer than 256 MiB");
    const std::size_t bad = find_bad_utf8(text_);
    if (bad != std::string_view::npos)
      throw make_broken(where_ + ": byte " + std::to_string(bad) + " is no UTF-8");
    Json whole = read_value(make_place(nullptr, where_), 0);
    skip_space();
    if (at_ != text_.size()) throw wrong();
    return whole;
  }

 private:
  using Place = std::shared_ptr<const Json::Place>;

  static Place make_place(Place within, std::string name) {
    return std::make_shared<Json::Place>(Json::Place{std::move(within), std::move(name)});
  }

  Error wrong() const { return make_broken(where_ + " is no JSON at byte " + std::to_string(at_)); }

  void skip_space() {
    while (at_ < text_.size() &&
           std::string_view(" \t\n\r").find(text_[at_]) != std::string_view::npos)
      ++at_;
  }

  /// The next byte that is no white space; 0 at the end, which JSON never has there.
  char next() {
    skip_space();
    return at_ < text_.size() ? text_[at_] : '\0';
  }

  void take(char mark) {
    if (next() != mark) throw wrong();
    ++at_;
  }

  Json read_value(const Place& place, int depth) {
    if (depth > kDeepestJson)
      throw make_broken(where_ + " is too deep at byte " + std::to_string(at_));
    if (++count_ > kMostJson)
      throw make_broken(where_ + " has more than " + std::to_string(kMostJson) + " values");
    Json json;
    json.place_ = place;
    switch (next()) {
      case '{': json.value_ = read_object(place, depth); break;
      case '[': json.value_ = read_list(place, depth); break;
      case '"': json.value_ = read_text(); break;
      case 't':
        take_word("true");
        json.value_ = true;
        break;
      case 'f':
        take_word("false");
        json.value_ = false;
        break;
      case 'n': take_word("null"); break;
      default: json.value_ = read_number();
    }
    return json;
  }

  Json::Object read_object(const Place& place, int depth) {
    Json::Object members;
    read_sequence('}', [&] {
      if (next() != '"') throw wrong();
      std::string name = read_text();
      take(':');
      Json value = read_value(make_place(place, name), depth + 1);
      members.emplace_back(std::move(name), std::move(value));
    });
    return members;
  }

  Json::List read_list(const Place& place, int depth) {
    Json::List items;
    read_sequence(']', [&] {
      items.push_back(
          read_value(make_place(place, "[" + std::to_string(items.size()) + "]"), depth + 1));
    });
    return items;
  }

  /// Reads from an opening bracket to the closing one, with commas between.
  template <class Each>
  void read_sequence(char end, Each each) {
    ++at_;
    if (next() == end) {
      ++at_;
      return;
    }
    for (;;) {
      each();
      if (next() == end) {
        ++at_;
        return;
      }
      take(',');
    }
  }

  void take_word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) throw wrong();
    at_ += word.size();
  }

  std::size_t skip_digits() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    return at_ - begin;
  }

  bool skip(std::string_view marks) {
    if (at_ >= text_.size() || marks.find(text_[at_]) == std::string_view::npos) return false;
    ++at_;
    return true;
  }

  double read_number() {
    const std::size_t begin = at_;
    skip("-");
    const bool zero = at_ < text_.size() && text_[at_] == '0';
    const std::size_t digits = skip_digits();
    if (digits == 0 || (zero && digits > 1)) throw wrong();
    if (skip(".") && skip_digits() == 0) throw wrong();
    if (skip("eE")) {
      skip("+-");
      if (skip_digits() == 0) throw wrong();
    }
    const double value =
        strtod_l(std::string(text_.substr(begin, at_ - begin)).c_str(), nullptr, c_);
    if (!std::isfinite(value)) throw wrong();
    return value;
  }

  std::string read_text() {
    std::string text;
    for (++at_; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '"') {
        ++at_;
        return text;
      }
      if (static_cast<unsigned char>(c) < 0x20) break;
      if (c == '\\') {
        read_escape(text);
      } else {
        text.push_back(c);
      }
    }
    throw wrong();
  }

  /// Reads what follows a backslash, and stays on its last byte.
  void read_escape(std::string& text) {
    constexpr std::string_view letters = "\"\\/bfnrt", meant = "\"\\/\b\f\n\r\t";
    if (++at_ >= text_.size()) throw wrong();
    const std::size_t found = letters.find(text_[at_]);
    if (found != std::string_view::npos) {
      text.push_back(meant[found]);
      return;
    }
    if (text_[at_] != 'u') throw wrong();
    char32_t c = read_unit();
    if (c >= 0xD800 && c <= 0xDBFF && text_.substr(at_ + 1, 2) == "\\u") {
      at_ += 2;
      const char32_t low = read_unit();
      if (low < 0xDC00 || low > 0xDFFF) throw wrong();
      c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    }
    if (c >= 0xD800 && c <= 0xDFFF) throw wrong();
    append_utf8(text, c);
  }

  char32_t read_unit() {
    char32_t unit = 0;
    for (int k = 0; k < 4; ++k) {
      const char c = ++at_ < text_.size() ? text_[at_] : '\0';
      const bool digit = c >= '0' && c <= '9', upper = c >= 'A' && c <= 'F',
                 lower = c >= 'a' && c <= 'f';
      if (!digit && !upper && !lower) throw wrong();
      unit = unit * 16 + static_cast<char32_t>(digit ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return unit;
  }

  std::string_view text_;
  const std::string& where_;
  locale_t c_;
  std::size_t at_ = 0;
  std::size_t count_ = 0;
};

inline Json Json::parse(std::string_view text, const std::string& where) {
  return JsonReader(text, where).read();
}

/// The text of an object's member, or another where it is missing or null.
inline std::string find_text(const Json& json, std::string_view name,
                             const std::string& otherwise) {
  const Json* found = json.find(name);
  return found == nullptr ? otherwise : found->text();
}

/// The whole number of an object's member, or another where it is missing or null.
inline std::int64_t find_integer(const Json& json, std::string_view name, std::int64_t otherwise) {
  const Json* found = json.find(name);
  return found == nullptr ? otherwise : found->integer();
}

/// Whether an object's member is there, and true.
inline bool is_true(const Json& json, std::string_view name) {
  const Json* found = json.find(name);
  return found != nullptr && found->boolean();
}

}  // namespace edgepack::detail

#endif
