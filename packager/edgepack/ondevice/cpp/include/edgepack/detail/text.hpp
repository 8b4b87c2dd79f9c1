// Texts as the Python loader writes them, in any locale of the program.

#ifndef EDGEPACK_DETAIL_TEXT_HPP
#define EDGEPACK_DETAIL_TEXT_HPP

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <ios>
#include <locale>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace edgepack::detail {

/// Joins texts with something between them.
inline std::string join(const std::vector<std::string>& texts, const std::string& between) {
  std::string joined;
  for (std::size_t k = 0; k < texts.size(); ++k) joined += (k == 0 ? "" : between) + texts[k];
  return joined;
}

/// A text in UTF-8 as Python's `repr` shows it: in single quotes, or in double ones where it has a
/// single one. What is in Latin-1 and does not print is escaped; `is_bytes` does so with all bytes
/// beyond ASCII.
inline std::string quote(std::string_view text, bool is_bytes = false) {
  const bool doubled = text.find('\'') != text.npos && text.find('"') == text.npos;
  const char mark = doubled ? '"' : '\'';
  std::string quoted(1, mark);
  const auto escape = [&quoted](unsigned char c) {
    constexpr std::string_view named = "\t\n\r", letters = "tnr", digits = "0123456789abcdef";
    const std::size_t found = named.find(static_cast<char>(c));
    quoted += '\\';
    if (found != named.npos)
      quoted += letters[found];
    else
      quoted += {'x', digits[c >> 4], digits[c & 15]};
  };
  for (std::size_t at = 0; at < text.size(); ++at) {
    const auto c = static_cast<unsigned char>(text[at]);
    const auto next = static_cast<unsigned char>(at + 1 < text.size() ? text[at + 1] : '\0');
    if (c < 0x20 || c == 0x7F || (is_bytes && c > 0x7F)) {
      escape(c);
    } else if (!is_bytes && c == 0xC2 && ((next >= 0x80 && next <= 0xA0) || next == 0xAD)) {
      escape(next);
      ++at;
    } else {
      if (text[at] == '\\' || text[at] == mark) quoted += '\\';
      quoted += text[at];
    }
  }
  return quoted + mark;
}

/// A number with so many digits behind the point, `-inf` and `nan` as they are.
inline std::string format_fixed(double value, int digits) {
  std::ostringstream text;
  text.exceptions(std::ios_base::badbit);  // where there is no memory, nothing is left out
  text.imbue(std::locale::classic());
  text.setf(std::ios_base::fixed);
  text.precision(digits);
  text << value;
  return text.str();
}

/// The words of a text, with white space between them.
inline std::vector<std::string> split_words(const std::string& text) {
  constexpr const char* space = " \t\n\v\f\r";
  std::vector<std::string> words;
  for (std::size_t end = 0;;) {
    const std::size_t begin = text.find_first_not_of(space, end);
    if (begin == std::string::npos) return words;
    end = std::min(text.find_first_of(space, begin), text.size());
    words.push_back(text.substr(begin, end - begin));
  }
}

/// A text whose capital letters of ASCII are small ones.
inline std::string lower_ascii(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return text;
}

/// The lines of a file's text; byte order marks and CRs are left out.
inline std::vector<std::string> split_lines(std::string_view text) {
  std::vector<std::string> lines(1);
  constexpr std::string_view mark = "\xEF\xBB\xBF";
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text.substr(at, mark.size()) == mark) {
      at += mark.size() - 1;
    } else if (text[at] == '\n') {
      lines.emplace_back();
    } else if (text[at] != '\r') {
      lines.back() += text[at];
    }
  }
  if (lines.back().empty()) lines.pop_back();
  return lines;
}

/// The number that bytes stand for, at most eight of them, the lowest first.
inline std::uint64_t read_little(std::string_view bytes) {
  std::uint64_t number = 0;
  for (std::size_t k = bytes.size(); k > 0; --k)
    number = number << 8 | static_cast<unsigned char>(bytes[k - 1]);
  return number;
}

/// A number in the fewest digits that stand for it alone.
inline std::string format_number(double value) {
  for (int digits = 15;; ++digits) {
    double read = 0;
#ifdef __cpp_lib_to_chars
    std::array<char, 32> place{};
    char* const begin = place.data();
    char* const end =
        std::to_chars(begin, begin + place.size(), value, std::chars_format::general, digits).ptr;
    const std::string text(begin, end);
    const bool is_read = std::from_chars(begin, end, read).ec == std::errc();
#else  // as in GCC before 11; it takes ten times as long
    std::ostringstream stream;
    stream.exceptions(std::ios_base::badbit);
    stream.imbue(std::locale::classic());
    stream.precision(digits);
    stream << value;
    const std::string text = stream.str();
    std::istringstream back(text);
    back.exceptions(std::ios_base::badbit);
    back.imbue(std::locale::classic());
    const bool is_read = static_cast<bool>(back >> read);
#endif
    if (digits == 17 || !std::isfinite(value) || (is_read && read == value)) return text;
  }
}

}  // namespace edgepack::detail

#endif
