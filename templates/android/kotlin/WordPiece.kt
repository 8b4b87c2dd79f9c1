import java.text.Normalizer
import java.util.Locale
import org.json.JSONArray
import org.json.JSONObject

/**
 * The tokenizer of a BERT model, as its `tokenizer.json` describes it. Threads may share it.
 *
 * It gives the same ids as the library that wrote the file: normalizer `BertNormalizer`, pre-tokenizer
 * `BertPreTokenizer`, model `WordPiece`, post-processor `TemplateProcessing` or `BertProcessing`, added
 * tokens, truncation and padding at the end. A build refuses files of other kinds.
 *
 * The device's Unicode tables decide the category of a character: for characters that are newer than
 * the device, the result may differ from the build host's.
 *
 * @param tokenizer the file's JSON
 * @throws org.json.JSONException if it is not such a file
 */
internal class WordPiece(tokenizer: JSONObject) {
    private val vocabulary = tokenizer.getJSONObject("model").getJSONObject("vocab")
    private val unknown: Int
    private val prefix: String
    private val longestWord: Int
    private val normalizer = tokenizer.getJSONObject("normalizer")
    private val cleans = normalizer.getBoolean("clean_text")
    private val spacesChinese = normalizer.getBoolean("handle_chinese_chars")
    private val lowers = normalizer.getBoolean("lowercase")
    private val strips = normalizer.optBoolean("strip_accents", lowers)
    private val around = Around(tokenizer.getJSONObject("post_processor"))
    private val exact: AddedTokens
    private val normalized: AddedTokens
    private val padId: Int
    private val padType: Int

    init {
        val model = tokenizer.getJSONObject("model")
        unknown = vocabulary.getInt(model.getString("unk_token"))
        prefix = model.getString("continuing_subword_prefix")
        longestWord = model.getInt("max_input_chars_per_word")
        val added = tokenizer.optJSONArray("added_tokens")?.let(::readObjects).orEmpty()
        val (late, early) = added.partition { it.getBoolean("normalized") }
        exact = AddedTokens(early.associate { it.getString("content") to it.getInt("id") })
        normalized = AddedTokens(late.associate { normalize(it.getString("content")) to it.getInt("id") })
        val padding = tokenizer.optJSONObject("padding")
        padType = padding?.optInt("pad_type_id") ?: 0
        padId = padding?.optInt("pad_id", -1)?.takeIf { it >= 0 } ?: exact.ids["[PAD]"] ?: vocabulary.optInt("[PAD]")
    }

    /**
     * Returns the token ids of a text.
     *
     * @param text the text; the file's added tokens in it, such as `[MASK]`, get their own ids
     * @param length the largest number of tokens, special ones included; the end of a longer text is cut off
     * @param pad whether to fill up to [length]
     * @throws IllegalArgumentException if [length] is smaller than the number of special tokens
     */
    fun encode(text: String, length: Int, pad: Boolean): TokenIds {
        val special = around.before.size + around.after.size
        require(length >= special) { "$length tokens do not hold the $special special ones" }
        val own = tokenize(text).take(length - special).map { Token(it, around.kind) }
        val tokens = around.before + own + around.after
        val filling = if (pad) List(length - tokens.size) { Token(padId, padType) } else emptyList()
        val all = tokens + filling
        return TokenIds(
            inputIds = IntArray(all.size) { all[it].id },
            attentionMask = IntArray(all.size) { if (it < tokens.size) 1 else 0 },
            tokenTypeIds = IntArray(all.size) { all[it].kind },
        )
    }

    private fun tokenize(text: String): List<Int> =
        exact.split(text) { part -> normalized.split(normalize(part), ::splitWords) }

    /** Normalizes a text as `BertNormalizer` does. */
    private fun normalize(text: String): String {
        var result = text
        if (cleans) result = mapCharacters(result, ::clean)
        if (spacesChinese) result = mapCharacters(result) { if (isChinese(it)) " ${toText(it)} " else toText(it) }
        if (strips) {
            result = mapCharacters(Normalizer.normalize(result, Normalizer.Form.NFD)) {
                if (Character.getType(it) == Character.NON_SPACING_MARK.toInt()) "" else toText(it)
            }
        }
        // Character by character: on a whole word, Java writes another sigma at the end.
        if (lowers) result = mapCharacters(result) { toText(it).lowercase(Locale.ROOT) }
        return result
    }

    private fun splitWords(text: String): List<Int> {
        val ids = mutableListOf<Int>()
        val word = mutableListOf<Int>()
        for (character in listCodePoints(text)) {
            val isPunctuation = isPunctuation(character)
            if (isPunctuation || isSpace(character)) {
                ids += findPieces(word)
                word.clear()
            } else {
                word += character
            }
            if (isPunctuation) ids += findPieces(listOf(character))
        }
        return ids + findPieces(word)
    }

    /** Returns the ids of the longest pieces, from the left; the unknown token's id if a piece is missing. */
    private fun findPieces(word: List<Int>): List<Int> {
        if (word.size > longestWord) return listOf(unknown)
        val ids = mutableListOf<Int>()
        var start = 0
        while (start < word.size) {
            var end = word.size
            while (end > start && !vocabulary.has(makePiece(word, start, end))) end--
            if (end == start) return listOf(unknown)
            ids += vocabulary.getInt(makePiece(word, start, end))
            start = end
        }
        return ids
    }

    private fun makePiece(word: List<Int>, start: Int, end: Int): String =
        word.subList(start, end).joinToString("", if (start > 0) prefix else "", transform = ::toText)
}

/**
 * A text as a model takes it. All three arrays have the same length.
 *
 * @property inputIds the tokens' ids
 * @property attentionMask 1 for the text's tokens and special tokens, 0 for padding
 * @property tokenTypeIds the number of the text that a token belongs to
 */
internal class TokenIds(val inputIds: IntArray, val attentionMask: IntArray, val tokenTypeIds: IntArray)

private class Token(val id: Int, val kind: Int)

/** The special tokens before and after a text's tokens, from the post-processor. */
private class Around(processor: JSONObject) {
    val before = mutableListOf<Token>()
    val after = mutableListOf<Token>()

    /** The type of the text's own tokens. */
    var kind = 0
        private set

    init {
        if (processor.getString("type") == "BertProcessing") {
            before += Token(processor.getJSONArray("cls").getInt(1), 0)
            after += Token(processor.getJSONArray("sep").getInt(1), 0)
        } else {
            readTemplate(readObjects(processor.getJSONArray("single")), processor.getJSONObject("special_tokens"))
        }
    }

    private fun readTemplate(pieces: List<JSONObject>, special: JSONObject) {
        var side = before
        for (piece in pieces) {
            if (piece.has("Sequence")) {
                kind = piece.getJSONObject("Sequence").getInt("type_id")
                side = after
            } else {
                val token = piece.getJSONObject("SpecialToken")
                val ids = special.getJSONObject(token.getString("id")).getJSONArray("ids")
                for (i in 0 until ids.length()) side += Token(ids.getInt(i), token.getInt("type_id"))
            }
        }
    }
}

/** Tokens that the code finds in a text before it splits the text into words. */
private class AddedTokens(val ids: Map<String, Int>) {
    private val longestFirst = ids.keys.filter { it.isNotEmpty() }.sortedByDescending { it.length }

    /** Returns the ids of these tokens in a text (leftmost first, then longest) and of the parts between them. */
    fun split(text: String, between: (part: String) -> List<Int>): List<Int> {
        val found = mutableListOf<Int>()
        var start = 0
        var at = 0
        while (at < text.length) {
            val token = longestFirst.firstOrNull { text.startsWith(it, at) }
            if (token == null) {
                at++
            } else {
                found += between(text.substring(start, at))
                found += ids.getValue(token)
                at += token.length
                start = at
            }
        }
        return found + between(text.substring(start))
    }
}

private fun readObjects(json: JSONArray): List<JSONObject> = List(json.length()) { json.getJSONObject(it) }

private fun listCodePoints(text: String): List<Int> {
    val points = mutableListOf<Int>()
    var at = 0
    while (at < text.length) {
        points += text.codePointAt(at)
        at += Character.charCount(points.last())
    }
    return points
}

private fun mapCharacters(text: String, transform: (character: Int) -> String): String =
    listCodePoints(text).joinToString("", transform = transform)

private fun toText(character: Int): String = String(Character.toChars(character))

private fun clean(character: Int): String =
    when {
        character == 9 || character == 10 || character == 13 -> " "
        character == 0xFFFD || Character.getType(character) in REMOVED -> ""
        isSpace(character) -> " "
        else -> toText(character)
    }

/** Categories that are removed: control, format, private use and surrogates. */
private val REMOVED = intSet(Character.CONTROL, Character.FORMAT, Character.PRIVATE_USE, Character.SURROGATE)

private val PUNCTUATION = intSet(
    Character.CONNECTOR_PUNCTUATION,
    Character.DASH_PUNCTUATION,
    Character.START_PUNCTUATION,
    Character.END_PUNCTUATION,
    Character.INITIAL_QUOTE_PUNCTUATION,
    Character.FINAL_QUOTE_PUNCTUATION,
    Character.OTHER_PUNCTUATION,
)

private fun intSet(vararg types: Byte): Set<Int> = types.mapTo(HashSet()) { it.toInt() }

private fun isPunctuation(character: Int): Boolean =
    character in ASCII_PUNCTUATION || Character.getType(character) in PUNCTUATION

/** All ASCII characters that are neither letters, digits, spaces nor control characters. */
private val ASCII_PUNCTUATION = (0x21..0x7E).filterNot { it.toChar().isLetterOrDigit() }.toSet()

/** Returns whether a character is white space in Unicode. */
private fun isSpace(character: Int): Boolean =
    character in 9..13 || character in 0x2000..0x200A || character in OTHER_SPACES

private val OTHER_SPACES = setOf(0x20, 0x85, 0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000)

/** Returns whether `BertNormalizer` treats a character as a word. */
private fun isChinese(character: Int): Boolean = CHINESE.any { character in it }

/** Source: tokenizers, normalizers/bert.rs, with its gap from U+2B820 to U+2B91F. */
private val CHINESE = listOf(
    0x4E00..0x9FFF,
    0x3400..0x4DBF,
    0x20000..0x2A6DF,
    0x2A700..0x2B73F,
    0x2B740..0x2B81F,
    0x2B920..0x2CEAF,
    0xF900..0xFAFF,
    0x2F800..0x2FA1F,
)
