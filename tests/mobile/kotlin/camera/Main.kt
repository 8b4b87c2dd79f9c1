package shapes

import android.content.ContextWrapper
import android.content.pm.ApplicationInfo
import android.content.res.AssetManager
import android.graphics.ImageFormat
import android.media.Image
import androidx.camera.core.ImageInfo
import androidx.camera.core.ImageProxy
import edgepack.shapes.CameraImage
import edgepack.shapes.Plane
import java.io.File
import java.nio.ByteBuffer
import java.util.concurrent.TimeUnit

/** Stands in for an app: assets in a file, and a folder for its cache. */
private class Phone(private val folder: File) : ContextWrapper(null) {
    override fun getAssets(): AssetManager = AssetManager(folder.resolve("apk"), folder.resolve("index"))

    override fun getCodeCacheDir(): File = folder.resolve("cache")

    override fun getApplicationInfo(): ApplicationInfo = ApplicationInfo().apply { nativeLibraryDir = "/app/lib" }
}

/** A frame as CameraX gives it; it counts how often it is closed. */
private class Frame(private val camera: Image, private val degrees: Int) : ImageProxy {
    var closed = 0
        private set

    override fun getImage(): Image = camera

    override fun getImageInfo(): ImageInfo =
        object : ImageInfo {
            override fun getRotationDegrees(): Int = degrees
        }

    override fun close() {
        closed++
        camera.close()
    }
}

private fun readFrame(folder: File, format: Int, width: Int, height: Int, degrees: Int): Frame {
    val sizes = listOf("y" to width, "u" to width / 2, "v" to width / 2)
    val planes = sizes.map { (name, stride) -> Plane(ByteBuffer.wrap(folder.resolve(name).readBytes()), stride, 1) }
    return Frame(CameraImage(format, width, height, planes), degrees)
}

/** Returns what the sample's finder finds in the frame in FOLDER. */
internal fun findOnce(folder: File, width: Int, height: Int, degrees: Int): Found {
    var newest: Found? = null
    val finder = ShapeFinder(Phone(folder), show = { newest = it }, explain = { error(it) })
    finder.use {
        finder.executor.submit { finder.analyze(readFrame(folder, ImageFormat.YUV_420_888, width, height, degrees)) }.get()
    }
    return checkNotNull(newest)
}

/**
 * Gives the sample's finder frames as the camera does, on its own thread, and prints what it says, a line for each.
 *
 * FOLDER has the app's package, and y, u and v of WIDTH x HEIGHT samples; DEGREES turn them upright.
 */
fun main(arguments: Array<String>) {
    val folder = File(arguments[0])
    val (width, height, degrees) = arguments.drop(1).map(String::toInt)
    val finder =
        ShapeFinder(
            Phone(folder),
            show = { found -> println("${found.variant} ${found.width} ${found.height}: ${found.shapes.joinToString("; ")}") },
            explain = { println("problem: $it") },
        )

    fun look(format: Int): Frame =
        readFrame(folder, format, width, height, degrees).also { frame ->
            finder.executor.submit { finder.analyze(frame) }.get()
        }
    finder.use {
        val frames = mutableListOf(look(ImageFormat.YUV_420_888), look(ImageFormat.JPEG))
        finder.score = 0.85
        frames += look(ImageFormat.YUV_420_888)
        check(frames.all { it.closed == 1 }) { "frames are closed ${frames.map { it.closed }} times" }
    }
    check(finder.executor.awaitTermination(1, TimeUnit.MINUTES)) { "the finder's thread goes on" }
}
