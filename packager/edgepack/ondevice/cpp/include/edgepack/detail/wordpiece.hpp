// Texts to token ids, as the `tokenizer.json` of a BERT model says: WordPiece and nothing else.
//
// The ids, and what is said of other tokenizers, are those of edgepack_wordpiece.py, by which a
// build proves the file.

#ifndef EDGEPACK_DETAIL_WORDPIECE_HPP
#define EDGEPACK_DETAIL_WORDPIECE_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "edgepack/detail/error.hpp"
#include "edgepack/detail/json.hpp"
#include "edgepack/detail/text.hpp"
#include "edgepack/detail/unicode.hpp"

namespace edgepack::detail {

/// A file describes a tokenizer of another kind.
struct TokenizerError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// One text as a model takes it; all three have the same length.
struct Encoding {
  std::vector<std::int64_t> input_ids;
  /// 1 for tokens of the text and special ones, 0 for padding.
  std::vector<std::int64_t> attention_mask;
  std::vector<std::int64_t> token_type_ids;
};

struct Token {
  std::int64_t id;
  /// The number of the text that it belongs to.
  std::int64_t kind;
};

/// What stands around a text's tokens, from the post-processor.
struct Around {
  std::vector<Token> before;
  /// The text's own type.
  std::int64_t kind = 0;
  std::vector<Token> after;

  /// Throws `TokenizerError`: it is not for exactly one text; `Error` (broken_bundle): it is not
  /// whole.
  static Around read(const Json& processor) {
    Around around;
    if (processor.at("type").text() == "BertProcessing") {
      around.before = {{read_item(processor.at("cls"), 1).integer(), 0}};
      around.after = {{read_item(processor.at("sep"), 1).integer(), 0}};
      return around;
    }
    const Json::List& pieces = processor.at("single").items();
    const auto is_text = [](const Json& piece) { return piece.find("Sequence") != nullptr; };
    const auto texts = std::count_if(pieces.begin(), pieces.end(), is_text);
    if (texts != 1)
      throw TokenizerError("its template for one text has " + std::to_string(texts) + " texts");
    std::vector<Token>* side = &around.before;
    for (const Json& piece : pieces) {
      if (const Json* text = piece.find("Sequence")) {
        around.kind = text->at("type_id").integer();
        side = &around.after;
        continue;
      }
      const Json& special = piece.at("SpecialToken");
      const Json& token = processor.at("special_tokens").at(special.at("id").text());
      for (const Json& id : token.at("ids").items())
        side->push_back({id.integer(), special.at("type_id").integer()});
    }
    return around;
  }

 private:
  static const Json& read_item(const Json& list, std::size_t number) {
    if (list.items().size() <= number) throw make_broken(list.path() + " is too short");
    return list.items()[number];
  }
};

/// Tokens that are found in a text before it is split into words.
class AddedTokens {
 public:
  /// Of tokens with the same content the last one counts.
  void add(const std::string& content, std::int64_t id) { ids_[content] = id; }

  /// Calls `between` for each part of a text without such tokens, and `found` with the id of each
  /// of them: the leftmost, of these the longest.
  template <class Between, class Found>
  void split(std::string_view text, Between between, Found found) const {
    std::size_t begin = 0;
    for (std::size_t at = 0; at < text.size();) {
      const auto token = find_longest(text.substr(at));
      if (token == ids_.end()) {
        ++at;
        continue;
      }
      if (at > begin) between(text.substr(begin, at - begin));
      found(token->second);
      at += token->first.size();
      begin = at;
    }
    if (begin < text.size()) between(text.substr(begin));
  }

 private:
  using Ids = std::map<std::string, std::int64_t, std::less<>>;

  Ids::const_iterator find_longest(std::string_view text) const {
    auto longest = ids_.end();
    for (auto each = ids_.begin(); each != ids_.end(); ++each) {
      // In this order, what begins the text is behind what is shorter and begins it, too.
      if (!each->first.empty() && text.substr(0, each->first.size()) == each->first) longest = each;
    }
    return longest;
  }

  Ids ids_;
};

/// Returns whether a character is what Unicode calls White_Space.
inline bool is_space(char32_t c) {
  constexpr std::u32string_view others = U" \u0085\u00A0\u1680\u2028\u2029\u202F\u205F\u3000";
  return (c >= 9 && c <= 13) || (c >= 0x2000 && c <= 0x200A) ||
         others.find(c) != std::u32string_view::npos;
}

/// Source: tokenizers, normalizers/bert.rs (is_chinese_char), with its gap at U+2B820 to U+2B91F.
inline bool is_chinese(char32_t c) {
  constexpr CharacterRange ranges[] = {{0x3400, 0x4DBF},   {0x4E00, 0x9FFF},   {0xF900, 0xFAFF},
                                       {0x20000, 0x2A6DF}, {0x2A700, 0x2B73F}, {0x2B740, 0x2B81F},
                                       {0x2B920, 0x2CEAF}, {0x2F800, 0x2FA1F}};
  return find_range(ranges, c) != nullptr;
}

/// Returns whether a character is a word of its own, as all of ASCII's marks are.
inline bool is_punctuation(char32_t c) {
  if (c < 0x80) {
    const bool is_alphanumeric =
        (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
    return c > 0x20 && c < 0x7F && !is_alphanumeric;
  }
  return find_range(kPunctuation, c) != nullptr;
}

/// A tokenizer of BERT's kind. Threads may share it.
class WordPiece {
 public:
  /// Takes what a `tokenizer.json` holds. Throws `TokenizerError`: it is of another kind; says
  /// which part is; `Error` (broken_bundle): it is not whole.
  explicit WordPiece(const Json& tokenizer) {
    check(tokenizer);
    const Json &model = tokenizer.at("model"), &normalizer = tokenizer.at("normalizer");
    cleans_ = normalizer.at("clean_text").boolean();
    parts_chinese_ = normalizer.at("handle_chinese_chars").boolean();
    lowers_ = normalizer.at("lowercase").boolean();
    const Json* strips = normalizer.find("strip_accents");
    const auto is_there = [](const auto& member) { return member.first == "strip_accents"; };
    const Json::Object& rules = normalizer.members();
    // Null, which stands for what `lowercase` says, is not the same as nothing.
    if (std::none_of(rules.begin(), rules.end(), is_there))
      throw make_broken(normalizer.path() + " has no strip_accents");
    strips_ = strips == nullptr ? lowers_ : strips->boolean();
    for (const auto& [word, id] : model.at("vocab").members()) vocabulary_[word] = id.integer();
    const auto unknown = vocabulary_.find(model.at("unk_token").text());
    if (unknown == vocabulary_.end())
      throw make_broken(model.path() + " has not its unknown token in its vocab");
    unknown_ = unknown->second;
    prefix_ = model.at("continuing_subword_prefix").text();
    longest_word_ = model.at("max_input_chars_per_word").integer();
    around_ = Around::read(tokenizer.at("post_processor"));
    read_added(tokenizer);
  }

  /// How many tokens stand around those of a text.
  std::size_t special_tokens() const { return around_.before.size() + around_.after.size(); }

  /// Returns the token ids of a text of strict UTF-8; what it holds of the file's added tokens,
  /// such as `[MASK]`, becomes these.
  ///
  /// `length` is the most tokens, special ones included: what is more is cut off the text's end.
  /// `pads` fills up to it. Throws `Error` (bad_input): it does not even hold the special tokens.
  Encoding encode(std::string_view text, std::size_t length, bool pads) const {
    if (length < special_tokens()) {
      throw Error(Code::bad_input,
                  std::to_string(length) + " tokens do not hold the " +
                      std::to_string(special_tokens()) + " special ones",
                  "build the bundle again with a greater length");
    }
    std::vector<std::int64_t> own = tokenize(text);
    own.resize(std::min(own.size(), length - special_tokens()));
    Encoding encoding;
    const auto add = [&encoding](const Token& token, std::int64_t mask) {
      encoding.input_ids.push_back(token.id);
      encoding.attention_mask.push_back(mask);
      encoding.token_type_ids.push_back(token.kind);
    };
    for (const Token& token : around_.before) add(token, 1);
    for (const std::int64_t id : own) add({id, around_.kind}, 1);
    for (const Token& token : around_.after) add(token, 1);
    while (pads && encoding.input_ids.size() < length) add(padding_, 0);
    return encoding;
  }

  /// Returns the token ids of a text, without special tokens around it, however many.
  std::vector<std::int64_t> tokenize(std::string_view text) const {
    std::vector<std::int64_t> ids;
    const auto add = [&ids](std::int64_t id) { ids.push_back(id); };
    exact_.split(
        text,
        [&](std::string_view part) {
          normalized_.split(
              normalize(part), [&](std::string_view piece) { split_words(piece, ids); }, add);
        },
        add);
    return ids;
  }

 private:
  static void check(const Json& tokenizer) {
    using Names = std::vector<std::string>;
    const std::pair<const char*, Names> kinds[] = {
        {"normalizer", {"BertNormalizer"}},
        {"pre_tokenizer", {"BertPreTokenizer"}},
        {"model", {"WordPiece"}},
        {"post_processor", {"TemplateProcessing", "BertProcessing"}}};
    for (const auto& [part, names] : kinds) {
      const Json* object = tokenizer.find(part);
      const std::string found =
          object == nullptr ? "missing" : find_text(*object, "type", "missing");
      if (std::find(names.begin(), names.end(), found) == names.end()) {
        throw TokenizerError("its " + std::string(part) + " is " + found + ", not " +
                             join(names, " or "));
      }
    }
    for (const char* part : {"truncation", "padding"}) {
      const Json* found = tokenizer.find(part);
      if (found == nullptr) continue;
      const std::string direction = find_text(*found, "direction", "Right");
      if (direction != "Right")
        throw TokenizerError("its " + std::string(part) + " is on the " + lower_ascii(direction));
    }
  }

  void read_added(const Json& tokenizer) {
    static const Json::List none;
    const Json* added = tokenizer.find("added_tokens");
    const auto word = vocabulary_.find("[PAD]");
    if (word != vocabulary_.end()) padding_.id = word->second;
    for (const Json& token : added == nullptr ? none : added->items()) {
      const std::string& content = token.at("content").text();
      for (const char* flag : {"single_word", "lstrip", "rstrip"}) {
        if (token.at(flag).boolean())
          throw TokenizerError("its added token " + quote(content) + " has " + quote(flag));
      }
      const std::int64_t id = token.at("id").integer();
      if (token.at("normalized").boolean()) {
        normalized_.add(normalize(content), id);
        continue;
      }
      exact_.add(content, id);
      if (content == "[PAD]") padding_.id = id;
    }
    const Json* padding = tokenizer.find("padding");
    if (padding == nullptr) return;
    if (const Json* id = padding->find("pad_id")) padding_.id = id->integer();
    if (const Json* kind = padding->find("pad_type_id")) padding_.kind = kind->integer();
  }

  /// Returns a text as `BertNormalizer` makes it.
  std::string normalize(std::string_view text) const {
    std::u32string characters;
    for (const char32_t c : split_characters(text)) {
      const char32_t kept = cleans_ ? clean(c) : c;
      if (cleans_ && kept == 0) continue;
      const bool is_word = parts_chinese_ && is_chinese(kept);
      if (is_word) characters += U' ';
      characters += kept;
      if (is_word) characters += U' ';
    }
    if (strips_) {
      characters = decompose(characters);
      const auto is_mark = [](char32_t c) { return find_range(kNonspacing, c) != nullptr; };
      characters.erase(std::remove_if(characters.begin(), characters.end(), is_mark),
                       characters.end());
    }
    if (lowers_) {
      std::u32string lowered;
      for (const char32_t c : characters) append_lower(lowered, c);
      characters = std::move(lowered);
    }
    return join_characters(characters);
  }

  /// Returns what a character is in a clean text; 0 where it is removed.
  static char32_t clean(char32_t c) {
    if (c == '\t' || c == '\n' || c == '\r') return ' ';
    if (c == 0xFFFD || find_range(kOthers, c) != nullptr) return 0;
    return is_space(c) ? ' ' : c;
  }

  /// Adds the ids of a normalized text's words; each punctuation character is one.
  void split_words(std::string_view text, std::vector<std::int64_t>& ids) const {
    std::size_t begin = 0, count = 0;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t place = at;
      const char32_t c = read_utf8(text, at);
      const bool is_mark = is_punctuation(c);
      if (!is_mark && !is_space(c)) {
        ++count;
        continue;
      }
      find_pieces(text.substr(begin, place - begin), count, ids);
      if (is_mark) find_pieces(text.substr(place, at - place), 1, ids);
      begin = at;
      count = 0;
    }
    find_pieces(text.substr(begin), count, ids);
  }

  /// Adds the ids of the longest pieces of a word of so many characters, from the left; the unknown
  /// token's if one lacks.
  void find_pieces(std::string_view word, std::size_t count, std::vector<std::int64_t>& ids) const {
    std::vector<std::int64_t> pieces;
    std::size_t begin = 0;
    if (static_cast<std::int64_t>(count) > longest_word_) {
      ids.push_back(unknown_);
      return;
    }
    std::string piece;
    while (begin < word.size()) {
      auto found = vocabulary_.end();
      std::size_t end = word.size();
      for (; end > begin; --end) {
        // The bytes of a character after its first one begin with the bits 10.
        if (end < word.size() && (static_cast<unsigned char>(word[end]) & 0xC0) == 0x80) continue;
        piece.assign(begin > 0 ? prefix_ : "").append(word.substr(begin, end - begin));
        found = vocabulary_.find(piece);
        if (found != vocabulary_.end()) break;
      }
      if (found == vocabulary_.end()) {
        ids.push_back(unknown_);
        return;
      }
      pieces.push_back(found->second);
      begin = end;
    }
    ids.insert(ids.end(), pieces.begin(), pieces.end());
  }

  bool cleans_, parts_chinese_, lowers_, strips_;  // the rules of the normalizer
  std::unordered_map<std::string, std::int64_t> vocabulary_;
  std::int64_t unknown_, longest_word_;
  std::string prefix_;
  Around around_;
  /// Added tokens that are found in the text as it is, and those that are in the normalized one.
  AddedTokens exact_, normalized_;
  Token padding_ = {0, 0};
};

/// What is done before a model that makes the tokens itself.
class InModel {
 public:
  /// Takes what the `tokenizer.json` in the model holds. Throws `Error` (broken_bundle).
  explicit InModel(const Json& tokenizer) {
    const bool has_pieces = tokenizer.at("model").find("merges") == nullptr;
    const Json* added = tokenizer.find("added_tokens");
    for (std::size_t k = 0; added != nullptr && k < added->items().size(); ++k) {
      const Json& token = added->items()[k];
      if (has_pieces || token.at("lstrip").boolean() || token.at("rstrip").boolean())
        untold_.push_back(token.at("content").text());
    }
    composes_ = !has_pieces && tokenizer.find("normalizer") != nullptr;
  }

  /// Returns a text of strict UTF-8 as such a model takes it.
  ///
  /// Throws `Error` (bad_input): the model would make other tokens of it.
  std::string encode_text(const std::string& text) const {
    if (text.find('\0') != std::string::npos) {
      throw Error(Code::bad_input, "the text holds a NUL, at which the model would end it",
                  "leave it out");
    }
    for (const std::string& token : untold_) {
      if (text.find(token) != std::string::npos) {
        throw Error(Code::bad_input,
                    "the text holds " + quote(token) +
                        ", which the model does not tell from words: leave it out, or make the"
                        " token ids outside the model",
                    "leave it out, or build the bundle without the tokenizer in the model");
      }
    }
    return composes_ ? join_characters(compose(split_characters(text))) : text;
  }

 private:
  /// Added tokens that a text must not hold: operators for WordPiece know none, those for BPE do
  /// not cut off the spaces beside one.
  std::vector<std::string> untold_;
  /// Whether a text has to be in the form NFC.
  bool composes_;
};

}  // namespace edgepack::detail

#endif
