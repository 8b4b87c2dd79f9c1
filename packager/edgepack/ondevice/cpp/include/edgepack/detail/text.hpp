// Texts as the Python loader writes them, in any locale of the program.

#ifndef EDGEPACK_DETAIL_TEXT_HPP
#define EDGEPACK_DETAIL_TEXT_HPP

#include <ios>
#include <locale>
#include <sstream>
#include <string>
#include <vector>

namespace edgepack::detail {

/// Joins texts with something between them.
inline std::string join(const std::vector<std::string>& texts, const std::string& between) {
  std::string joined;
  for (std::size_t k = 0; k < texts.size(); ++k) joined += (k == 0 ? "" : between) + texts[k];
  return joined;
}

/// A name as Python's `repr` shows it: in single quotes, or in double ones where it has a single
/// one.
inline std::string quote(const std::string& text) {
  const bool doubled = text.find('\'') != std::string::npos && text.find('"') == std::string::npos;
  const char mark = doubled ? '"' : '\'';
  std::string quoted(1, mark);
  for (const char c : text) {
    if (c == '\\' || c == mark) quoted += '\\';
    quoted += c;
  }
  return quoted + mark;
}

/// A number with so many digits behind the point, `-inf` and `nan` as they are.
inline std::string format_fixed(double value, int digits) {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text.setf(std::ios_base::fixed);
  text.precision(digits);
  text << value;
  return text.str();
}

}  // namespace edgepack::detail

#endif
