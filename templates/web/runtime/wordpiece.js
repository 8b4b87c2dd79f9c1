import {requireInput} from "./errors.js";

/**
 * @typedef {object} Token
 * @property {number} id
 * @property {number} kind the number of the text that it belongs to
 *
 * @typedef {object} TokenIds one text as a model takes it; all three have the same length
 * @property {number[]} inputIds
 * @property {number[]} attentionMask 1 for the text's tokens and special tokens, 0 for padding
 * @property {number[]} tokenTypeIds
 */

/**
 * The tokenizer of a BERT model, as its `tokenizer.json` describes it.
 *
 * It gives the same ids as the library that wrote the file: normalizer `BertNormalizer`, pre-tokenizer
 * `BertPreTokenizer`, model `WordPiece`, post-processor `TemplateProcessing` or `BertProcessing`, added tokens,
 * truncation and padding at the end. A build refuses files of other kinds.
 *
 * The engine's Unicode tables decide the category of a character: for characters that are newer than the engine, the
 * result may differ from the build host's.
 */
export class WordPiece {
  #vocabulary;
  #unknown;
  #prefix;
  #longestWord;
  #rules;
  #around;
  #exact;
  #normalized;
  #padding;

  /** @param {any} tokenizer the file's JSON */
  constructor(tokenizer) {
    const {model, normalizer} = tokenizer;
    /** @type {Map<string, number>} */
    this.#vocabulary = new Map(Object.entries(model.vocab));
    this.#unknown = this.#vocabulary.get(model.unk_token) ?? 0;
    this.#prefix = model.continuing_subword_prefix;
    this.#longestWord = model.max_input_chars_per_word;
    this.#rules = {
      cleans: normalizer.clean_text,
      spacesChinese: normalizer.handle_chinese_chars,
      lowers: normalizer.lowercase,
      strips: normalizer.strip_accents ?? normalizer.lowercase,
    };
    this.#around = readAround(tokenizer.post_processor);
    /** @type {{content: string, id: number, normalized: boolean}[]} */
    const added = tokenizer.added_tokens ?? [];
    this.#exact = new AddedTokens(added.filter((token) => !token.normalized));
    const late = added.filter((token) => token.normalized);
    this.#normalized = new AddedTokens(late.map(({content, id}) => ({content: this.#normalize(content), id})));
    const known = this.#exact.ids.get("[PAD]") ?? this.#vocabulary.get("[PAD]") ?? 0;
    this.#padding = {id: tokenizer.padding?.pad_id ?? known, kind: tokenizer.padding?.pad_type_id ?? 0};
  }

  /**
   * Returns the token ids of a text.
   *
   * @param {string} text the file's added tokens in it, such as `[MASK]`, get their own ids
   * @param {number} length the largest number of tokens, special ones included; the end of a longer text is cut off
   * @param {boolean} pad whether to fill up to `length`
   * @returns {TokenIds}
   * @throws {import("./errors.js").ModelError} `input`, if `length` is smaller than the number of special tokens
   */
  encode(text, length, pad) {
    const {before, kind, after} = this.#around;
    const special = before.length + after.length;
    requireInput(length >= special, `${length} tokens do not hold the ${special} special ones`);
    const own = this.#tokenize(text).slice(0, length - special).map((id) => ({id, kind}));
    const tokens = [...before, ...own, ...after];
    const filling = pad ? Array.from({length: length - tokens.length}, () => this.#padding) : [];
    const all = [...tokens, ...filling];
    return {
      inputIds: all.map(({id}) => id),
      attentionMask: all.map((_, place) => (place < tokens.length ? 1 : 0)),
      tokenTypeIds: all.map((token) => token.kind),
    };
  }

  /** @param {string} text */
  #tokenize(text) {
    return this.#exact.split(text, (part) =>
      this.#normalized.split(this.#normalize(part), (piece) => this.#splitWords(piece)));
  }

  /**
   * Normalizes a text as `BertNormalizer` does.
   *
   * @param {string} text
   */
  #normalize(text) {
    const {cleans, spacesChinese, strips, lowers} = this.#rules;
    let result = text;
    if (cleans) result = Array.from(result, clean).join("");
    if (spacesChinese) result = result.replace(CHINESE, " $& ");
    if (strips) result = result.normalize("NFD").replace(/\p{Mn}/gu, "");
    // Character by character: on a whole word, another sigma would be written at the end.
    if (lowers) result = Array.from(result, (character) => character.toLowerCase()).join("");
    return result;
  }

  /** @param {string} text */
  #splitWords(text) {
    const words = text.match(WORDS) ?? [];
    return words.flatMap((word) => this.#findPieces(Array.from(word)));
  }

  /**
   * Returns the ids of the longest pieces, from the left; the unknown token's id if a piece is missing.
   *
   * @param {string[]} word its characters
   */
  #findPieces(word) {
    if (word.length > this.#longestWord) return [this.#unknown];
    const ids = [];
    let start = 0;
    while (start < word.length) {
      let end = word.length;
      /** @type {number | undefined} */
      let id;
      for (; end > start; end--) {
        id = this.#vocabulary.get((start ? this.#prefix : "") + word.slice(start, end).join(""));
        if (id !== undefined) break;
      }
      if (id === undefined) return [this.#unknown];
      ids.push(id);
      start = end;
    }
    return ids;
  }
}

/**
 * Returns the special tokens before and after a text's tokens, and the type of its own.
 *
 * @param {any} processor
 * @returns {{before: Token[], kind: number, after: Token[]}}
 */
function readAround(processor) {
  if (processor.type === "BertProcessing") {
    return {before: [{id: processor.cls[1], kind: 0}], kind: 0, after: [{id: processor.sep[1], kind: 0}]};
  }
  /** @type {{Sequence?: {type_id: number}, SpecialToken?: {id: string, type_id: number}}[]} */
  const pieces = processor.single;
  const place = pieces.findIndex((piece) => piece.Sequence);
  /** @type {(some: typeof pieces) => Token[]} */
  const list = (some) => some.flatMap(({SpecialToken: token}) =>
    token ? processor.special_tokens[token.id].ids.map((/** @type {number} */ id) => ({id, kind: token.type_id})) : []);
  return {
    before: list(pieces.slice(0, place)), kind: pieces[place].Sequence?.type_id ?? 0, after: list(pieces.slice(place + 1)),
  };
}

/** Tokens that are found in a text before it is split into words. */
class AddedTokens {
  #longestFirst;

  /** @param {{content: string, id: number}[]} tokens */
  constructor(tokens) {
    this.ids = new Map(tokens.map(({content, id}) => [content, id]));
    this.#longestFirst = [...this.ids.keys()].filter(Boolean).toSorted((one, other) => other.length - one.length);
  }

  /**
   * Returns the ids of these tokens in a text (leftmost first, then longest) and of the parts between them.
   *
   * @param {string} text
   * @param {(part: string) => number[]} between
   */
  split(text, between) {
    const found = [];
    let start = 0;
    let at = 0;
    while (at < text.length && this.#longestFirst.length) {
      const place = at;
      const token = this.#longestFirst.find((content) => text.startsWith(content, place));
      if (token === undefined) {
        at++;
        continue;
      }
      found.push(...between(text.slice(start, at)), Number(this.ids.get(token)));
      at += token.length;
      start = at;
    }
    return [...found, ...between(text.slice(start))];
  }
}

// What Unicode calls White_Space. Source: PropList.txt.
const SPACES = "\\t-\\r \\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const SPACE = new RegExp(`[${SPACES}]`, "u");
// ASCII symbols count as punctuation, as in BertPreTokenizer; each such character is a word.
const PUNCTUATION = "\\p{P}!-/:-@[-`{-~";
const WORDS = new RegExp(`[${PUNCTUATION}]|[^${PUNCTUATION}${SPACES}]+`, "gu");
// Categories that are removed: control, format, private use and surrogates.
const REMOVED = /[\uFFFD\p{Cc}\p{Cf}\p{Co}\p{Cs}]/u;
// Source: tokenizers, normalizers/bert.rs, with its gap from U+2B820 to U+2B91F.
const CHINESE = new RegExp(
  "[\\u4e00-\\u9fff\\u3400-\\u4dbf\\u{20000}-\\u{2a6df}\\u{2a700}-\\u{2b73f}\\u{2b740}-\\u{2b81f}\\u{2b920}-\\u{2ceaf}"
    + "\\uf900-\\ufaff\\u{2f800}-\\u{2fa1f}]",
  "gu",
);

/** @param {string} character */
function clean(character) {
  if (character === "\t" || character === "\n" || character === "\r") return " ";
  if (REMOVED.test(character)) return "";
  return SPACE.test(character) ? " " : character;
}
