package shapes

import android.content.Context
import androidx.camera.core.ExperimentalGetImage
import androidx.camera.core.ImageAnalysis
import androidx.camera.core.ImageProxy
import edgepack.shapes.AnswerOptions
import edgepack.shapes.Detection
import edgepack.shapes.ModelException
import edgepack.shapes.Picture
import edgepack.shapes.ShapeDetector
import java.io.Closeable
import java.util.concurrent.ExecutorService
import java.util.concurrent.Executors

const val LEAST_SCORE = 0.4f

/**
 * What a frame shows.
 *
 * @property shapes best first, in pixels of the upright picture.
 * @property width of the upright picture.
 * @property variant of the model that found them.
 */
class Found(val shapes: List<Detection>, val width: Int, val height: Int, val variant: String)

/**
 * Finds shapes in a camera's frames, on a thread of its own.
 *
 * @param show takes what each frame shows, on that thread.
 * @param explain takes what went wrong, on that thread.
 */
class ShapeFinder(
    private val context: Context,
    private val show: (Found) -> Unit,
    private val explain: (String) -> Unit,
) : ImageAnalysis.Analyzer, Closeable {
    /** Its one thread opens the model, runs it and closes it. */
    val executor: ExecutorService = Executors.newSingleThreadExecutor()

    /** The least score of a shape. */
    @Volatile
    var score = LEAST_SCORE.toDouble()

    private var model: ShapeDetector? = null
    private var predictor: ShapeDetector.Predictor? = null

    init {
        executor.execute {
            explaining {
                val opened = ShapeDetector.open(context)
                model = opened
                predictor = opened.predictor()
            }
        }
    }

    /** Looks at a frame and closes it: the camera has few, and gives the newest when this one is done. */
    override fun analyze(frame: ImageProxy) = frame.use { explaining { find(it) } }

    @androidx.annotation.OptIn(ExperimentalGetImage::class)
    private fun find(frame: ImageProxy) {
        val image = frame.image ?: return
        val ready = predictor ?: return
        val picture = Picture.of(image, frame.imageInfo.rotationDegrees)
        val answers = ready.predict(picture, AnswerOptions(score = score))
        show(Found(answers.boxes, picture.width, picture.height, model!!.variant))
    }

    private fun explaining(action: () -> Unit) {
        try {
            action()
        } catch (error: ModelException) {
            explain("${error.message}")
        } catch (error: IllegalArgumentException) {
            // A frame that the model cannot take.
            explain("${error.message}")
        }
    }

    /** Frees the model's memory when its last frame is done; the caller does not wait. */
    override fun close() {
        executor.execute {
            predictor?.close()
            model?.close()
        }
        executor.shutdown()
    }
}
