import android.util.Base64
import java.math.BigInteger
import java.nio.BufferUnderflowException
import java.nio.ByteBuffer
import java.security.MessageDigest
import java.text.ParseException
import java.text.SimpleDateFormat
import java.util.Date
import java.util.Locale
import java.util.TimeZone

private const val TYPE = "ssh-ed25519"
private const val NAMESPACE = "edgepack"
private const val KEY_BYTES = 32
private val LIMIT =
    Regex("""\b(valid-after|valid-before|namespaces)=(?:"([^"]*)"|([^",\s]*))""", RegexOption.IGNORE_CASE)
private val TIME = Regex("""(\d{8}|\d{12}|\d{14})(Z?)""")

/** Who may sign bundles: a key, and when it may. */
internal class Signer private constructor(private val key: ByteArray, private val after: Date?, private val before: Date?) {
    /**
     * Checks the signature of a manifest, which `edgepack sign` wrote.
     *
     * @param armored the signature: PROTOCOL.sshsig of OpenSSH describes it.
     * @throws ModelException if it is no signature of this manifest, if another key made it, or if this key may not sign now.
     */
    fun check(manifest: ByteArray, armored: ByteArray) {
        val blob = ByteBuffer.wrap(decode(String(armored, Charsets.US_ASCII)))
        try {
            check(manifest, blob)
        } catch (short: BufferUnderflowException) {
            damaged("it is cut off")
        }
        val now = Date()
        if (before != null && !now.before(before)) throw ModelException("the key that signed the bundle has expired: on $before")
        if (after != null && now.before(after)) throw ModelException("the key that signed the bundle is valid from $after on")
    }

    private fun check(manifest: ByteArray, blob: ByteBuffer) {
        val magic = ByteArray(MAGIC.size).also(blob::get)
        if (!magic.contentEquals(MAGIC) || blob.getInt() != 1) damaged("it is no SSH signature of version 1")
        val foreign = blob.getBytes()
        val namespace = blob.getText()
        val reserved = blob.getBytes()
        val hash = blob.getText()
        val signature = ByteBuffer.wrap(blob.getBytes())
        if (namespace != NAMESPACE) damaged("it is for '$namespace', not for '$NAMESPACE'")
        if (!foreign.contentEquals(write(TYPE.toByteArray(), key))) {
            val type = ByteBuffer.wrap(foreign).getText()
            throw ModelException("the bundle is signed with another key than the app's: ${fingerprint(foreign)} ($type)")
        }
        if (hash != "sha512" && hash != "sha256") damaged("it is over a $hash hash")
        if (signature.getText() != TYPE) damaged("it is no $TYPE signature")
        val digest = MessageDigest.getInstance(if (hash == "sha512") "SHA-512" else "SHA-256").digest(manifest)
        val signed = MAGIC + write(namespace.toByteArray(), reserved, hash.toByteArray(), digest)
        if (!Ed25519.verify(key, signed, signature.getBytes())) damaged("it does not fit manifest.json: one of them was changed")
    }

    private fun decode(armored: String): ByteArray {
        val body = armored.substringAfter("-----BEGIN SSH SIGNATURE-----", "").substringBefore("-----END SSH SIGNATURE-----", "")
        try {
            if (body.isNotEmpty()) return Base64.decode(body, Base64.DEFAULT)
        } catch (other: IllegalArgumentException) {
            throw ModelException("the bundle is damaged: manifest.json.sig is not Base64", other)
        }
        damaged("it is no SSH signature")
    }

    private fun damaged(why: String): Nothing = throw ModelException("the bundle is damaged: manifest.json.sig: $why")

    private fun fingerprint(key: ByteArray): String {
        val digest = MessageDigest.getInstance("SHA-256").digest(key)
        return "SHA256:" + Base64.encodeToString(digest, Base64.NO_WRAP or Base64.NO_PADDING)
    }

    companion object {
        private val MAGIC = "SSHSIG".toByteArray()

        /**
         * Reads a line of a `.pub` file, or one of allowed signers as ssh-keygen(1) describes them.
         *
         * @throws IllegalArgumentException if it has no key of type `ssh-ed25519`, says a time that is none, lists
         * namespaces without `edgepack`, or is of an authority for certificates.
         */
        fun parse(line: String): Signer {
            val words = line.trim().split(Regex("\\s+"))
            val place = words.indexOf(TYPE)
            require(place >= 0 && place + 1 < words.size) { "'$line' has no $TYPE key, the only type that this code checks" }
            val blob = ByteBuffer.wrap(Base64.decode(words[place + 1], Base64.DEFAULT))
            val key =
                try {
                    blob.getText()
                    blob.getBytes()
                } catch (short: BufferUnderflowException) {
                    throw IllegalArgumentException("the key in '$line' is cut off", short)
                }
            require(key.size == KEY_BYTES) { "the key in '$line' has ${key.size} bytes, not $KEY_BYTES" }
            val limits = LIMIT.findAll(words.take(place).joinToString(" ")).map { it.destructured }
            val values = limits.associate { (name, quoted, bare) -> name.lowercase(Locale.ROOT) to quoted + bare }
            val (after, before) = listOf("valid-after", "valid-before").map { name -> values[name]?.let(::readTime) }
            val namespaces = values["namespaces"]
            require(namespaces == null || isListed(NAMESPACE, namespaces)) {
                "the key in '$line' may not sign bundles: its namespaces do not include '$NAMESPACE'"
            }
            require(words.take(place).none { "cert-authority" in it.lowercase(Locale.ROOT).split(',') }) {
                "the key in '$line' may not sign bundles: it signs certificates"
            }
            return Signer(key, after, before)
        }

        private fun readTime(text: String): Date {
            val (digits, zone) = requireNotNull(TIME.matchEntire(text)) { "'$text' is no time" }.destructured
            val format = SimpleDateFormat("yyyyMMddHHmmss", Locale.ROOT)
            format.isLenient = false
            if (zone == "Z") format.timeZone = TimeZone.getTimeZone("UTC")
            try {
                return checkNotNull(format.parse(digits.padEnd("yyyyMMddHHmmss".length, '0')))
            } catch (other: ParseException) {
                throw IllegalArgumentException("'$text' is no time", other)
            }
        }
    }
}

/**
 * Returns whether a list of patterns has a name: `*` stands for any text, `?` for one character, and a pattern behind
 * `!` takes out what it fits. Source: ssh_config(5), PATTERNS.
 */
private fun isListed(name: String, patterns: String): Boolean {
    val (without, with) = patterns.split(",").partition { it.startsWith("!") }
    return with.any { fits(name, it) } && without.none { fits(name, it.drop(1)) }
}

private fun fits(name: String, pattern: String): Boolean =
    Regex(Regex.escape(pattern).replace("*", "\\E.*\\Q").replace("?", "\\E.\\Q")).matches(name)

/** Reads bytes behind their number. */
private fun ByteBuffer.getBytes(): ByteArray {
    val count = getInt()
    if (count < 0 || count > remaining()) throw BufferUnderflowException()
    return ByteArray(count).also(::get)
}

private fun ByteBuffer.getText(): String = String(getBytes(), Charsets.US_ASCII)

/** Writes each part behind its number of bytes. */
private fun write(vararg parts: ByteArray): ByteArray {
    val all = ByteBuffer.allocate(parts.sumOf { it.size + Int.SIZE_BYTES })
    for (part in parts) all.putInt(part.size).put(part)
    return all.array()
}

/**
 * Checks Ed25519 signatures, as RFC 8032, section 5.1, describes it.
 *
 * Android itself checks them only where its security provider is of 2025 or newer, which no API level tells
 * (google/conscrypt, pull request 1287). Nothing here is secret, so the time that it takes may depend on the numbers.
 */
internal object Ed25519 {
    private val P = BigInteger.ONE.shiftLeft(255) - BigInteger.valueOf(19)
    private val ORDER = BigInteger.ONE.shiftLeft(252) + BigInteger("27742317777372353535851937790883648493")
    private val TWO = BigInteger.valueOf(2)
    private val D = (BigInteger.valueOf(-121665) * BigInteger.valueOf(121666).modInverse(P)).mod(P)
    private val ROOT_OF_MINUS_1 = TWO.modPow((P - BigInteger.ONE) / BigInteger.valueOf(4), P)
    private val BASE = checkNotNull(decode(encode(BigInteger.valueOf(4) * BigInteger.valueOf(5).modInverse(P) % P, false)))

    /** A point in extended coordinates: x = X/Z, y = Y/Z, xy = T/Z. */
    private class Point(val x: BigInteger, val y: BigInteger, val z: BigInteger, val t: BigInteger) {
        operator fun plus(other: Point): Point {
            val a = (y - x) * (other.y - other.x) % P
            val b = (y + x) * (other.y + other.x) % P
            val c = TWO * D * t % P * other.t % P
            val d = TWO * z * other.z % P
            val (e, f) = Pair(b - a, d - c)
            val (g, h) = Pair(d + c, b + a)
            return Point(e * f % P, g * h % P, f * g % P, e * h % P)
        }

        operator fun times(scalar: BigInteger): Point {
            var sum = Point(BigInteger.ZERO, BigInteger.ONE, BigInteger.ONE, BigInteger.ZERO)
            for (bit in scalar.bitLength() - 1 downTo 0) {
                sum += sum
                if (scalar.testBit(bit)) sum += this
            }
            return sum
        }

        fun negate(): Point = Point(-x, y, z, -t)

        fun encode(): ByteArray {
            val inverse = z.modInverse(P)
            return encode((y * inverse).mod(P), (x * inverse).mod(P).testBit(0))
        }
    }

    /** Returns whether a signature of 64 bytes is one of a message by a key of 32 bytes. */
    fun verify(key: ByteArray, message: ByteArray, signature: ByteArray): Boolean {
        if (signature.size != 2 * KEY_BYTES) return false
        val owner = decode(key) ?: return false
        val r = signature.copyOf(KEY_BYTES)
        val s = readNumber(signature.copyOfRange(KEY_BYTES, 2 * KEY_BYTES))
        if (s >= ORDER) return false
        val hash = readNumber(MessageDigest.getInstance("SHA-512").digest(r + key + message)).mod(ORDER)
        return (BASE * s + owner.negate() * hash).encode().contentEquals(r)
    }

    /** Returns the point that 32 bytes stand for; null if there is none. */
    private fun decode(bytes: ByteArray): Point? {
        val all = readNumber(bytes)
        val isOdd = all.testBit(255)
        val y = all.clearBit(255)
        if (y >= P) return null
        val u = (y * y - BigInteger.ONE).mod(P)
        val v = (D * y * y + BigInteger.ONE).mod(P)
        val square = u * v.modInverse(P) % P
        var x = square.modPow((P + BigInteger.valueOf(3)) / BigInteger.valueOf(8), P)
        if (x * x % P != square) x = x * ROOT_OF_MINUS_1 % P
        if (x * x % P != square || (x.signum() == 0 && isOdd)) return null
        if (x.testBit(0) != isOdd) x = P - x
        return Point(x, y, BigInteger.ONE, x * y % P)
    }

    private fun encode(y: BigInteger, isOdd: Boolean): ByteArray {
        val all = if (isOdd) y.setBit(255) else y
        return ByteArray(KEY_BYTES) { place -> all.shiftRight(8 * place).toByte() }
    }

    private fun readNumber(littleEndian: ByteArray): BigInteger = BigInteger(1, littleEndian.reversedArray())
}
