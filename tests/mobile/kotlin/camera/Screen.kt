package shapes

import androidx.camera.view.LifecycleCameraController
import androidx.compose.material3.MaterialTheme
import androidx.compose.material3.Surface
import androidx.compose.material3.lightColorScheme
import androidx.compose.ui.ImageComposeScene
import androidx.compose.ui.graphics.toComposeImageBitmap
import androidx.compose.ui.unit.Density
import androidx.compose.ui.viewinterop.preview
import java.io.File
import org.jetbrains.skia.EncodedImageFormat
import org.jetbrains.skia.Image

/** Of the screen, in pixels, with two for each of Compose's. */
private const val WIDTH = 720
private const val HEIGHT = 880
private const val QUALITY = 85

/** Draws the sample's screen with what its finder finds in a frame: FOLDER and the frame as `main` of Main.kt takes them. */
object Screen {
    @JvmStatic
    fun main(arguments: Array<String>) {
        val folder = File(arguments[0])
        val (width, height, degrees) = arguments.drop(1).map(String::toInt)
        val found = findOnce(folder, width, height, degrees)
        preview = Image.makeFromEncoded(folder.resolve("upright.png").readBytes()).toComposeImageBitmap()
        val scene =
            ImageComposeScene(WIDTH, HEIGHT, Density(2f)) {
                MaterialTheme(lightColorScheme()) {
                    Surface { ShapesScreen(LifecycleCameraController(null), found, "", 0.4f) {} }
                }
            }
        val drawn = scene.render().encodeToData(EncodedImageFormat.JPEG, QUALITY)
        scene.close()
        folder.resolve("screen.jpg").writeBytes(checkNotNull(drawn).bytes)
        println("${found.variant}: ${found.shapes.joinToString("; ")}")
    }
}
