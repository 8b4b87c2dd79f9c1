package edgepack.proof

import android.content.ContextWrapper
import android.content.res.AssetManager
import edgepack.net.Net
import java.io.File

/** Stands in for an app's context: assets that lie in a file, and a folder for its cache. */
private class Phone(private val folder: File) : ContextWrapper(null) {
    override fun getAssets(): AssetManager = AssetManager(folder.resolve("apk"), folder.resolve("index"))

    override fun getCodeCacheDir(): File = folder.resolve("cache")
}

/** An app's release build in one call: opens the library's model, and tests it. */
fun main(arguments: Array<String>) {
    Net.open(Phone(File(arguments[0]))).use { net ->
        val test = net.selfTest()
        check(test.passed) { "$test" }
        println(test)
    }
}
