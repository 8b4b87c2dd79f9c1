package app

import android.content.ContextWrapper
import android.content.pm.ApplicationInfo
import android.content.res.AssetManager
import edgepack.detector.Detector
import edgepack.faces.Faces
import edgepack.plain.Plain
import edgepack.runtime.*
import edgepack.text.Text
import java.io.File
import org.json.JSONArray
import org.json.JSONObject

/** Stands in for an app: assets in a file, one folder for the cache of all its models. */
private class Phone(private val folder: File) : ContextWrapper(null) {
    override fun getAssets(): AssetManager = AssetManager(folder.resolve("apk"), folder.resolve("index"))

    override fun getCodeCacheDir(): File = folder.resolve("cache")

    override fun getApplicationInfo(): ApplicationInfo = ApplicationInfo().apply { nativeLibraryDir = "/app/lib" }
}

private const val WIDTH = 40
private const val HEIGHT = 30
private val COLOURS = IntArray(WIDTH * HEIGHT) { 0xff shl 24 or (it * 7919) }

/** Opens three models that share their types, and one that has types of its own, in one app. */
fun main(arguments: Array<String>) {
    val phone = Phone(File(arguments[0]))
    val found = JSONObject()
    Detector.open(phone).use { detector ->
        Faces.open(phone).use { faces -> Text.open(phone).use { use(listOf(detector, faces, it), found) } }
    }
    Plain.open(phone).use { plain ->
        val picture = edgepack.plain.Picture.of(COLOURS, WIDTH, HEIGHT)
        found.put("plain", "${plain.predict(picture).answers.objects}").put("plainDb", "${plain.selfTest().decibels}")
    }
    found.put("older", failing { edgepack.older.Detector.open(phone) })
    found.put("twin", failing { edgepack.twin.Detector.open(phone) })
    println(found)
}

private fun use(models: List<AutoCloseable>, found: JSONObject) {
    val (detector, faces, text) = models
    detector as Detector
    faces as Faces
    text as Text
    val picture = Picture.of(COLOURS, WIDTH, HEIGHT)
    found.put("detector", show(detector.predict(picture).answers.objects))
    found.put("faces", show(faces.predict(picture, AnswerOptions(most = 1)).answers.boxes))
    found.put("text", show(text.predict("Was it a car?").hidden))
    found.put("frames", detector.predictor().use { show(it.predict(picture).objects) })
    val tests: List<SelfTest> = listOf(detector.selfTest(), faces.selfTest(), text.selfTest())
    found.put("passed", JSONArray(tests.map { it.passed })).put("detectorDb", "${tests.first().decibels}")
}

/** What an app does with the objects of any of its models, and with any of their tensors. */
private fun show(objects: List<Detection>): String = "$objects"

private fun show(tensor: FloatTensor): String = "$tensor"

private fun failing(call: () -> Any?): String =
    try {
        "it gave ${call()}"
    } catch (error: ModelException) {
        "${error.reason}: ${error.message}"
    }
