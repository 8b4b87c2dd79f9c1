import java.io.File
import java.io.IOException
import org.json.JSONArray
import org.json.JSONException
import org.json.JSONObject

/** What an open found: the variant that works here, and why better ones do not. */
internal class Verdict(val variant: String, val passedOver: List<PassedOver>)

/**
 * Keeps the verdict of an open in the app's cache, for the next one.
 *
 * @param name of the file: a digest of what is opened.
 * @param key all that the verdict depends on. With another key there is no verdict.
 */
internal class Verdicts(cache: File, name: String, private val key: String) {
    private val file = File(cache, "verdict-${name.take(16)}.json")

    /** Returns the verdict; null if none was kept, or if it cannot be read. */
    fun read(): Verdict? =
        try {
            val json = JSONObject(file.readText())
            val passed = json.getJSONArray("passed_over").let { list -> List(list.length(), list::getJSONArray) }
            val verdict = Verdict(json.getString("variant"), passed.map { PassedOver(it.getString(0), it.getString(1)) })
            verdict.takeIf { json.getString("key") == key }
        } catch (missing: IOException) {
            null
        } catch (damaged: JSONException) {
            null
        }

    /** Keeps a verdict. Where the cache takes no file, the next open finds out again. */
    fun write(verdict: Verdict) {
        val passed = JSONArray(verdict.passedOver.map { JSONArray(listOf(it.variant, it.reason)) })
        val json = JSONObject().put("key", key).put("variant", verdict.variant).put("passed_over", passed)
        val part = File(file.path + ".part")
        try {
            file.parentFile?.mkdirs()
            part.writeText("$json")
            part.renameTo(file)
        } catch (full: IOException) {
            part.delete()
        }
    }
}
