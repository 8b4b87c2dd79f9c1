package edgepack.subject

import android.content.ContextWrapper
import android.content.pm.ApplicationInfo
import android.content.res.AssetManager
import java.io.File
import java.nio.ByteBuffer
import kotlin.random.Random
import kotlinx.coroutines.flow.asFlow
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.runBlocking

/** Stands in for an app: assets in a file, folders for its cache and libraries. */
private class Phone(private val folder: File) : ContextWrapper(null) {
    override fun getAssets(): AssetManager = AssetManager(folder.resolve("apk"), folder.resolve("index"))

    override fun getCodeCacheDir(): File = folder.resolve("cache")

    override fun getApplicationInfo(): ApplicationInfo = ApplicationInfo().apply { nativeLibraryDir = "/app/lib" }
}

/** Gives pictures to a model in coroutines: what comes of them is what blocking calls give. */
fun main(arguments: Array<String>) {
    val pictures = List(5) { number ->
        Picture.of(ByteBuffer.wrap(Random(number).nextBytes(3 * 40 * 30)), 40, 30)
    }
    runBlocking {
        Subject.awaitOpen(Phone(File(arguments[0]))).use { model ->
            val blocking = pictures.map(model::predict)
            check(pictures.map { model.awaitPredict(it) } == blocking) { "a suspending call gives something else" }
            val wide = AnswerOptions(score = 0.0)
            check(model.awaitPredict(pictures[0], wide) == model.predict(pictures[0], wide)) { "options do not count" }
            model.predictor().use { predictor ->
                val found = pictures.asFlow().predictLatest { predictor.predict(it) }.toList()
                val answers = blocking.map { it.answers }
                check(found.last() == answers.last() && answers.containsAll(found)) { "a flow gives something else" }
            }
        }
    }
    println("equal")
}
