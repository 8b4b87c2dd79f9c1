// Converts texts to token ids, as the tokenizer.json of a BERT model describes it: WordPiece and nothing else.
//
// The Python and Kotlin runtimes give the same ids. The code compares and cuts texts by Unicode scalars, never as Swift's
// `String` does, which treats canonically equivalent texts as equal. The platform's Unicode tables decide the category of a
// character: for characters that are newer than the tables, two platforms may give different results.

import Foundation

/// A text as a model takes it. All three arrays have the same length.
struct TokenIDs: Sendable, Equatable {
    let inputIDs: [Int]
    /// 1 for the text's tokens and special tokens, 0 for padding.
    let attentionMask: [Int]
    let tokenTypeIDs: [Int]
}

/// A file is no tokenizer or one of another kind, or a length is too small for any text.
public struct TokenizerError: LocalizedError, CustomStringConvertible, Sendable {
    /// What is wrong.
    public let description: String

    init(_ description: String) { self.description = description }

    /// The same as ``description``.
    public var errorDescription: String? { description }
}

/// The tokenizer that a tokenizer.json describes. Threads may share it.
struct WordPiece: Sendable {
    /// The id that pads the end.
    let padID: Int
    private let padTypeID: Int
    private let vocabulary: [[UInt8]: Int]
    private let unknown: Int
    private let continuingPrefix: [UInt8]
    private let longestWord: Int
    private let normalizer: BertNormalizer
    private let around: SpecialTokens
    /// Added tokens that are found in the original text.
    private let exact: AddedTokens
    /// Added tokens that are found in the normalized text.
    private let normalized: AddedTokens

    /// Reads a tokenizer.json.
    ///
    /// - Throws: ``TokenizerError`` if it is not JSON, or has a part that is not BERT's; the error names the part.
    init(_ file: Data) throws {
        let json: ExactJSON
        do {
            json = try ExactJSON(file)
        } catch let error as ExactJSONError {
            throw TokenizerError(error.description)
        }
        try requireKinds(json)
        let model = json["model"]
        var ids: [[UInt8]: Int] = [:]
        for (token, id) in try model["vocab"].object.orThrow("model.vocab") { ids[token] = try id.int.orThrow("model.vocab") }
        vocabulary = ids
        let unknownToken = try model["unk_token"].bytes.orThrow("model.unk_token")
        unknown = try ids[unknownToken].orThrow("model.vocab: it has not the unknown token")
        continuingPrefix = try model["continuing_subword_prefix"].bytes.orThrow("model.continuing_subword_prefix")
        longestWord = try model["max_input_chars_per_word"].int.orThrow("model.max_input_chars_per_word")
        let bert = try BertNormalizer(json["normalizer"])
        normalizer = bert
        around = try SpecialTokens(json["post_processor"])
        let added = try (json["added_tokens"].array ?? []).map(AddedToken.init)
        exact = AddedTokens(added.filter { !$0.isNormalized }.map { ($0.content, $0.id) })
        normalized = AddedTokens(added.filter(\.isNormalized).map { (bert.normalized($0.content), $0.id) })
        let pad = Array("[PAD]".unicodeScalars)
        padID = json["padding"]["pad_id"].int ?? exact.ids[pad] ?? ids[utf8(pad)] ?? 0
        padTypeID = json["padding"]["pad_type_id"].int ?? 0
    }

    /// Returns the token ids of a text.
    ///
    /// - Parameters:
    ///   - text: The file's added tokens in it, such as `[MASK]`, get their own ids.
    ///   - length: The largest number of tokens, special ones included; the end of a longer text is cut off.
    ///   - pad: Whether to fill up to `length`.
    /// - Throws: ``TokenizerError`` if `length` is smaller than the number of special tokens.
    func encode(_ text: String, length: Int, pad: Bool) throws -> TokenIDs {
        let special = around.before.count + around.after.count
        guard length >= special else {
            throw TokenizerError("\(length) tokens do not hold the \(special) special ones")
        }
        let own = tokens(text).prefix(length - special).map { Token(id: $0, type: around.textType) }
        let all = around.before + own + around.after
        let filling = pad ? length - all.count : 0
        return TokenIDs(
            inputIDs: all.map(\.id) + Array(repeating: padID, count: filling),
            attentionMask: Array(repeating: 1, count: all.count) + Array(repeating: 0, count: filling),
            tokenTypeIDs: all.map(\.type) + Array(repeating: padTypeID, count: filling))
    }

    /// Returns the token ids of a text of any length, without special tokens around it.
    func tokens(_ text: String) -> [Int] {
        exact.ids(in: Array(text.unicodeScalars)[...]) { plain in
            normalized.ids(in: normalizer.normalized(Array(plain))[...], between: ids(ofWords:))
        }
    }

    private func ids(ofWords text: ArraySlice<Unicode.Scalar>) -> [Int] {
        text.split(whereSeparator: \.properties.isWhitespace).flatMap(splitPunctuation).flatMap(pieces)
    }

    /// Returns the ids of the longest pieces, from the left; the unknown token's id if a piece is missing.
    private func pieces(of word: ArraySlice<Unicode.Scalar>) -> [Int] {
        guard word.count <= longestWord else { return [unknown] }
        let bytes = utf8(word)
        var ids: [Int] = []
        var start = 0
        while start < bytes.count {
            guard let (id, end) = longestPiece(bytes, from: start) else { return [unknown] }
            ids.append(id)
            start = end
        }
        return ids
    }

    /// Returns the id of a word's longest piece that begins at a byte, and the index after its last byte.
    private func longestPiece(_ word: [UInt8], from start: Int) -> (id: Int, end: Int)? {
        let prefix = start == 0 ? [] : continuingPrefix
        var end = word.count
        while end > start {
            if let id = vocabulary[prefix + word[start..<end]] { return (id, end) }
            end -= 1
            // The bytes of a scalar after its first one begin with the bits 10.
            while word[end] & 0xc0 == 0x80 { end -= 1 }
        }
        return nil
    }
}

/// A special token with its type.
private struct Token {
    let id: Int
    let type: Int
}

/// The special tokens before and after the tokens of one text.
private struct SpecialTokens {
    let before: [Token]
    /// The type of the text's own tokens.
    let textType: Int
    let after: [Token]

    init(_ processor: ExactJSON) throws {
        if processor["type"].string == "BertProcessing" {
            before = [Token(id: try processor["cls"][1].int.orThrow("post_processor.cls"), type: 0)]
            after = [Token(id: try processor["sep"][1].int.orThrow("post_processor.sep"), type: 0)]
            textType = 0
            return
        }
        let pieces = try processor["single"].array.orThrow("post_processor.single")
        let texts = pieces.indices.filter { !pieces[$0]["Sequence"].isNull }
        guard let place = texts.first, texts.count == 1 else {
            throw TokenizerError("its template for one text has \(texts.count) texts")
        }
        func tokens(_ pieces: ArraySlice<ExactJSON>) throws -> [Token] {
            try pieces.flatMap { piece in
                let special = piece["SpecialToken"]
                let type = try special["type_id"].int.orThrow("post_processor.single")
                let name = try special["id"].string.orThrow("post_processor.single")
                let ids = try processor["special_tokens"][name]["ids"].array.orThrow("post_processor.special_tokens")
                return try ids.map { Token(id: try $0.int.orThrow("post_processor.special_tokens"), type: type) }
            }
        }
        textType = try pieces[place]["Sequence"]["type_id"].int.orThrow("post_processor.single")
        before = try tokens(pieces[..<place])
        after = try tokens(pieces[(place + 1)...])
    }
}

/// What `BertNormalizer` does to a text.
private struct BertNormalizer {
    let cleansText: Bool
    let partsChinese: Bool
    let stripsAccents: Bool
    let lowercases: Bool

    init(_ json: ExactJSON) throws {
        cleansText = try json["clean_text"].bool.orThrow("normalizer.clean_text")
        partsChinese = try json["handle_chinese_chars"].bool.orThrow("normalizer.handle_chinese_chars")
        lowercases = try json["lowercase"].bool.orThrow("normalizer.lowercase")
        stripsAccents = json["strip_accents"].bool ?? lowercases
    }

    func normalized(_ text: [Unicode.Scalar]) -> [Unicode.Scalar] {
        var text = text
        if cleansText { text = text.compactMap(cleaned) }
        if partsChinese { text = text.flatMap { isChinese($0) ? [" ", $0, " "] : [$0] } }
        if stripsAccents {
            text = string(text).decomposedStringWithCanonicalMapping.unicodeScalars
                .filter { $0.properties.generalCategory != .nonspacingMark }
        }
        // Character by character, because a sigma at a word's end must not become another letter.
        return lowercases ? text.flatMap { Array($0.properties.lowercaseMapping.unicodeScalars) } : text
    }

    private func cleaned(_ scalar: Unicode.Scalar) -> Unicode.Scalar? {
        if scalar == "\t" || scalar == "\n" || scalar == "\r" { return " " }
        switch scalar.properties.generalCategory {
        case .control, .format, .privateUse, .surrogate: return nil
        default: break
        }
        if scalar == "\u{fffd}" { return nil }
        return scalar.properties.isWhitespace ? " " : scalar
    }
}

/// Source: tokenizers, normalizers/bert.rs (is_chinese_char), with its gap at U+2B820 to U+2B91F.
private func isChinese(_ scalar: Unicode.Scalar) -> Bool {
    switch scalar.value {
    case 0x4e00...0x9fff, 0x3400...0x4dbf, 0x20000...0x2a6df, 0x2a700...0x2b73f, 0x2b740...0x2b81f, 0x2b920...0x2ceaf,
        0xf900...0xfaff, 0x2f800...0x2fa1f:
        return true
    default: return false
    }
}

/// Returns a word's parts: each punctuation character by itself, and the parts between them.
private func splitPunctuation(_ word: ArraySlice<Unicode.Scalar>) -> [ArraySlice<Unicode.Scalar>] {
    var parts: [ArraySlice<Unicode.Scalar>] = []
    var start = word.startIndex
    for index in word.indices where isPunctuation(word[index]) {
        parts += [word[start..<index], word[index...index]]
        start = index + 1
    }
    parts.append(word[start...])
    return parts.filter { !$0.isEmpty }
}

private func isPunctuation(_ scalar: Unicode.Scalar) -> Bool {
    switch scalar.value {
    case 0x21...0x2f, 0x3a...0x40, 0x5b...0x60, 0x7b...0x7e: return true
    default: break
    }
    switch scalar.properties.generalCategory {
    case .connectorPunctuation, .dashPunctuation, .openPunctuation, .closePunctuation, .initialPunctuation,
        .finalPunctuation, .otherPunctuation:
        return true
    default: return false
    }
}

/// A token that the file adds to the vocabulary.
private struct AddedToken {
    let content: [Unicode.Scalar]
    let id: Int
    let isNormalized: Bool

    init(_ json: ExactJSON) throws {
        let text = try json["content"].string.orThrow("added_tokens.content")
        for flag in ["single_word", "lstrip", "rstrip"] where try json[flag].bool.orThrow("added_tokens.\(flag)") {
            throw TokenizerError("its added token '\(text)' has '\(flag)'")
        }
        content = Array(text.unicodeScalars)
        id = try json["id"].int.orThrow("added_tokens.id")
        isNormalized = try json["normalized"].bool.orThrow("added_tokens.normalized")
    }
}

/// Tokens that are found in a text before it is split into words: the leftmost first, then the longest.
private struct AddedTokens {
    let ids: [[Unicode.Scalar]: Int]
    private let longestFirst: [[Unicode.Scalar]]

    /// Of tokens with the same content, the last one counts.
    init(_ tokens: [([Unicode.Scalar], Int)]) {
        ids = Dictionary(tokens) { _, last in last }
        longestFirst = ids.keys.filter { !$0.isEmpty }.sorted { $0.count > $1.count }
    }

    /// Returns the ids of these tokens in a text, and a function's ids for the parts between them.
    func ids(in text: ArraySlice<Unicode.Scalar>, between: (ArraySlice<Unicode.Scalar>) -> [Int]) -> [Int] {
        var found: [Int] = []
        var (start, index) = (text.startIndex, text.startIndex)
        while index < text.endIndex {
            guard let token = longestFirst.first(where: { text[index...].starts(with: $0) }), let id = ids[token] else {
                index += 1
                continue
            }
            found += between(text[start..<index]) + [id]
            index += token.count
            start = index
        }
        return found + between(text[start...])
    }
}

private let kinds = [
    ("normalizer", ["BertNormalizer"]), ("pre_tokenizer", ["BertPreTokenizer"]), ("model", ["WordPiece"]),
    ("post_processor", ["TemplateProcessing", "BertProcessing"]),
]

/// Throws ``TokenizerError`` if a part is of a kind that this code does not know.
private func requireKinds(_ json: ExactJSON) throws {
    for (part, known) in kinds {
        let found = json[part]["type"].string ?? "missing"
        guard known.contains(found) else {
            throw TokenizerError("its \(part) is \(found), not \(known.joined(separator: " or "))")
        }
    }
    for part in ["truncation", "padding"] {
        let direction = json[part]["direction"].string ?? "Right"
        guard direction == "Right" else { throw TokenizerError("its \(part) is on the \(direction.lowercased())") }
    }
}

extension Optional {
    fileprivate func orThrow(_ part: String) throws -> Wrapped {
        guard let self else { throw TokenizerError("it is not whole: \(part)") }
        return self
    }
}

private func string(_ scalars: some Sequence<Unicode.Scalar>) -> String {
    var view = String.UnicodeScalarView()
    view.append(contentsOf: scalars)
    return String(view)
}

private func utf8(_ scalars: some Sequence<Unicode.Scalar>) -> [UInt8] {
    Array(string(scalars).utf8)
}
