// Characters as Unicode has them: categories, lower case, and the normal forms NFD and NFC.
//
// Source of the forms: Unicode Standard Annex 15, and chapter 3.12 of the standard for Hangul. The
// tables are those of the Python that wrote them.

#ifndef EDGEPACK_DETAIL_UNICODE_HPP
#define EDGEPACK_DETAIL_UNICODE_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "edgepack/detail/json.hpp"
#include "edgepack/detail/unicode_tables.hpp"

namespace edgepack::detail {

/// Returns the characters of strict UTF-8.
inline std::u32string split_characters(std::string_view text) {
  std::u32string characters;
  for (std::size_t at = 0; at < text.size();) characters += read_utf8(text, at);
  return characters;
}

/// Returns characters in UTF-8.
inline std::string join_characters(std::u32string_view characters) {
  std::string text;
  for (const char32_t c : characters) append_utf8(text, c);
  return text;
}

/// Returns the range of a table that holds a character; nullptr where none does.
template <class Range, std::size_t count>
const Range* find_range(const Range (&table)[count], char32_t c) {
  const auto is_before = [](char32_t one, const Range& other) { return one < other.first; };
  const Range* next = std::upper_bound(std::begin(table), std::end(table), c, is_before);
  if (next == std::begin(table) || std::prev(next)->last < c) return nullptr;
  return std::prev(next);
}

/// Adds the lower case of a character by itself.
inline void append_lower(std::u32string& text, char32_t c) {
  if (c == 0x130) {
    text += U"i\u0307";
    return;
  }
  for (const LowerRange& range : kLower) {
    if (range.first > c) break;
    if (c <= range.last && (c - range.first) % range.step == 0) {
      text += static_cast<char32_t>(static_cast<std::int64_t>(c) + range.away);
      return;
    }
  }
  text += c;
}

inline std::uint32_t find_class(char32_t c) {
  const NumberedRange* found = find_range(kClasses, c);
  return found == nullptr ? 0 : found->number;
}

// Hangul: where its leading consonants, vowels, trailing consonants and syllables begin, and how
// many there are.
constexpr char32_t kLeads = 0x1100, kVowels = 0x1161, kTrails = 0x11A7, kSyllables = 0xAC00;
constexpr char32_t kLeadCount = 19, kVowelCount = 21, kTrailCount = 28;
constexpr char32_t kSyllableCount = kLeadCount * kVowelCount * kTrailCount;

/// Adds a character's parts, and theirs.
inline void append_parts(std::u32string& text, char32_t c) {
  if (c >= kSyllables && c < kSyllables + kSyllableCount) {
    const char32_t syllable = c - kSyllables;
    const auto add = [&text](std::uint32_t letter) { text += static_cast<char32_t>(letter); };
    add(kLeads + syllable / (kVowelCount * kTrailCount));
    add(kVowels + syllable / kTrailCount % kVowelCount);
    if (syllable % kTrailCount != 0) add(kTrails + syllable % kTrailCount);
    return;
  }
  const NumberedRange* found = find_range(kDecomposed, c);
  if (found == nullptr) {
    text += c;
    return;
  }
  const std::uint32_t* parts = kParts + found->number + std::size_t{2} * (c - found->first);
  append_parts(text, parts[0]);
  if (parts[1] != 0) append_parts(text, parts[1]);
}

/// Returns a text in the form NFD: characters as their parts, marks in the order of their classes.
inline std::u32string decompose(std::u32string_view text) {
  std::u32string parts;
  for (const char32_t c : text) append_parts(parts, c);
  const auto is_mark = [](char32_t c) { return find_class(c) != 0; };
  std::vector<std::uint64_t> marks;
  for (auto begin = parts.begin(); begin != parts.end();) {
    begin = std::find_if(begin, parts.end(), is_mark);
    const auto end = std::find_if_not(begin, parts.end(), is_mark);
    // By class and then by place: libstdc++'s stable_sort has a warning of its own in Clang.
    marks.clear();
    for (auto mark = begin; mark != end; ++mark) {
      const auto place = static_cast<std::uint64_t>(mark - begin);
      marks.push_back(std::uint64_t{find_class(*mark)} << 56 | place << 24 | *mark);
    }
    std::sort(marks.begin(), marks.end());
    for (const std::uint64_t mark : marks) *begin++ = static_cast<char32_t>(mark & 0xFFFFFF);
  }
  return parts;
}

/// Returns what two characters become; 0 where they stay two.
inline char32_t find_composed(char32_t first, char32_t second) {
  using Pairs = std::map<std::pair<char32_t, char32_t>, char32_t>;
  static const Pairs pairs = [] {
    Pairs made;
    for (const NumberedRange& range : kDecomposed) {
      for (char32_t c = range.first; c <= range.last; ++c) {
        const std::uint32_t* parts = kParts + range.number + std::size_t{2} * (c - range.first);
        if (parts[1] != 0 && find_range(kUncomposed, c) == nullptr) made[{parts[0], parts[1]}] = c;
      }
    }
    return made;
  }();
  if (first >= kLeads && first < kLeads + kLeadCount && second >= kVowels &&
      second < kVowels + kVowelCount)
    return kSyllables + ((first - kLeads) * kVowelCount + second - kVowels) * kTrailCount;
  if (first >= kSyllables && first < kSyllables + kSyllableCount &&
      (first - kSyllables) % kTrailCount == 0 && second > kTrails && second < kTrails + kTrailCount)
    return first + second - kTrails;
  const auto found = pairs.find({first, second});
  return found == pairs.end() ? 0 : found->second;
}

/// Returns a text in the form NFC: what has become one character again of its parts.
inline std::u32string compose(std::u32string_view text) {
  std::u32string composed;
  std::size_t starter = std::u32string::npos;
  std::uint32_t last = 0;  // the class of what is between the starter and a character
  for (const char32_t c : decompose(text)) {
    const std::uint32_t own = find_class(c);
    const bool is_next = starter != std::u32string::npos && starter + 1 == composed.size();
    const bool is_free = starter != std::u32string::npos && (is_next || last < own);
    const char32_t one = is_free ? find_composed(composed[starter], c) : 0;
    if (one != 0) {
      composed[starter] = one;
      continue;
    }
    if (own == 0) starter = composed.size();
    last = own;
    composed += c;
  }
  return composed;
}

}  // namespace edgepack::detail

#endif
