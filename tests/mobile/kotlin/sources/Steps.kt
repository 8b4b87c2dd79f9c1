package edgepack.subject

import android.content.ContextWrapper
import android.content.pm.ApplicationInfo
import android.content.res.AssetManager
import java.io.File
import java.io.FilterInputStream
import java.io.InputStream
import java.math.BigInteger
import java.security.GeneralSecurityException
import java.security.KeyPairGenerator
import java.security.SecureRandom
import java.security.Signature
import org.json.JSONArray
import org.json.JSONObject

/** Stands in for an app: assets in a file, folders for its cache and libraries. */
private class Phone(private val folder: File) : ContextWrapper(null) {
    override fun getAssets(): AssetManager = AssetManager(folder.resolve("apk"), folder.resolve("index"))

    override fun getCodeCacheDir(): File = folder.resolve("cache")

    override fun getApplicationInfo(): ApplicationInfo = ApplicationInfo().apply { nativeLibraryDir = "/app/lib" }
}

/** Does the steps of FOLDER/steps.json as an app does, and prints what came of each as JSON. */
fun main(arguments: Array<String>) {
    val folder = File(arguments[0])
    val steps = JSONArray(folder.resolve("steps.json").readText())
    val app = App(folder)
    println(JSONArray(List(steps.length(), steps::getJSONObject).map(app::take)))
}

private class App(private val folder: File) {
    private val phone = Phone(folder)
    private val read = mutableListOf<String>()
    private var kept: Subject? = null

    fun take(step: JSONObject): Any {
        read.clear()
        return try {
            when (val what = step.getString("do")) {
                "open" -> open(step)
                "keep" -> say(Subject.open(phone, source = source(step)).also { kept = it })
                "use kept" -> kept!!.use { answer(it) }
                "install" -> {
                    Subject.install(phone, store(step), folder.resolve(step.getString("download")))
                    "installed"
                }
                "compare signatures" -> compareSignatures(step.getInt("count"))
                else -> error(what)
            }
        } catch (error: RuntimeException) {
            "${error.javaClass.simpleName}: ${error.message}"
        }
    }

    private fun answer(model: Subject): String {
        val classes = model.predict(IntArray(64), 8, 8).answers.scores
        return if (classes.size == 2) "it answers" else "it gives $classes"
    }

    private fun open(step: JSONObject): JSONObject =
        Subject.open(phone, step.opt("variant") as? String, source(step)).use { model ->
            say(model).apply { if (step.optBoolean("test")) put("test", model.selfTest().passed) }
        }

    private fun say(model: Subject): JSONObject =
        JSONObject()
            .put("variant", model.variant)
            .put("passedOver", JSONArray(model.passedOver.map { JSONArray(listOf(it.variant, it.reason)) }))
            .put("read", JSONArray(read.toList()))

    private fun store(step: JSONObject): ModelStore =
        ModelStore(folder.resolve(step.getString("store")), step.opt("signer") as? String)

    private fun source(step: JSONObject): ModelSource =
        when {
            step.has("folder") -> signed(ModelSource.folder(folder.resolve(step.getString("folder"))), step)
            step.has("function") -> ModelSource.function { decrypt(folder.resolve(step.getString("function")), it) }
            step.has("store") -> store(step).current ?: ModelSource.ASSETS
            else -> signed(ModelSource.ASSETS, step)
        }

    private fun signed(source: ModelSource, step: JSONObject): ModelSource =
        (step.opt("signer") as? String)?.let(source::signedBy) ?: source

    /** Java's own signatures are taken, and with a bit turned, in a key or a message too, they are not. */
    private fun compareSignatures(count: Int): String {
        val random = SecureRandom()
        repeat(count) { number ->
            val pair = KeyPairGenerator.getInstance("Ed25519").generateKeyPair()
            // The last 32 bytes of what X.509 has are the key. Source: RFC 8410, section 10.1.
            val key = pair.public.encoded.takeLast(32).toByteArray()
            val message = ByteArray(number).also(random::nextBytes)
            val signature = Signature.getInstance("Ed25519").run {
                initSign(pair.private)
                update(message)
                sign()
            }
            check(Ed25519.verify(key, message, signature)) { "$number is not taken" }

            fun turned(bytes: ByteArray): ByteArray {
                val place = number % bytes.size
                return bytes.copyOf().also { it[place] = it[place].toInt().xor(4).toByte() }
            }
            check(!Ed25519.verify(turned(key), message, signature)) { "$number is taken of another key" }
            check(!Ed25519.verify(key, message, turned(signature))) { "$number is taken with another signature" }
            check(!Ed25519.verify(key, message + 0, signature)) { "$number is taken of another message" }
            check(!Ed25519.verify(key, message, addOrder(signature))) { "$number is taken with a second signature" }
        }
        return "$count are equal"
    }

    /** Adds the group's order to S, which leaves [S]B as it is: RFC 8032, section 5.1.7, refuses it. */
    private fun addOrder(signature: ByteArray): ByteArray {
        val order = BigInteger.ONE.shiftLeft(252) + BigInteger("27742317777372353535851937790883648493")
        val sum = BigInteger(1, signature.takeLast(32).reversed().toByteArray()) + order
        return ByteArray(64) { if (it < 32) signature[it] else sum.shiftRight(8 * (it - 32)).toByte() }
    }

    /** Every bit of the file is turned. */
    private fun decrypt(from: File, path: String): InputStream {
        read += path
        val file = from.resolve(path)
        if (file.exists() && file.length() == 0L) throw GeneralSecurityException("no key")
        return object : FilterInputStream(file.inputStream()) {
            override fun read(bytes: ByteArray, offset: Int, most: Int): Int {
                val count = super.read(bytes, offset, most)
                for (place in offset until offset + count) bytes[place] = bytes[place].toInt().inv().toByte()
                return count
            }
        }
    }
}
