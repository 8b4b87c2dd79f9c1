package shapes

import androidx.camera.view.LifecycleCameraController
import androidx.camera.view.PreviewView
import androidx.compose.foundation.Canvas
import androidx.compose.foundation.layout.Box
import androidx.compose.foundation.layout.Column
import androidx.compose.foundation.layout.fillMaxSize
import androidx.compose.foundation.layout.fillMaxWidth
import androidx.compose.foundation.layout.padding
import androidx.compose.foundation.layout.safeDrawingPadding
import androidx.compose.material3.Slider
import androidx.compose.material3.Text
import androidx.compose.runtime.Composable
import androidx.compose.ui.Modifier
import androidx.compose.ui.geometry.Offset
import androidx.compose.ui.geometry.Size
import androidx.compose.ui.graphics.Color
import androidx.compose.ui.graphics.drawscope.Stroke
import androidx.compose.ui.semantics.LiveRegionMode
import androidx.compose.ui.semantics.contentDescription
import androidx.compose.ui.semantics.liveRegion
import androidx.compose.ui.semantics.semantics
import androidx.compose.ui.text.TextStyle
import androidx.compose.ui.text.drawText
import androidx.compose.ui.text.rememberTextMeasurer
import androidx.compose.ui.unit.dp
import androidx.compose.ui.viewinterop.AndroidView
import kotlin.math.roundToInt

/** The camera with boxes over it, what is found in words, and the least score. */
@Composable
fun ShapesScreen(
    camera: LifecycleCameraController,
    found: Found?,
    problem: String,
    score: Float,
    onScore: (Float) -> Unit,
) {
    Column(Modifier.safeDrawingPadding()) {
        Box(Modifier.weight(1f).fillMaxWidth()) {
            AndroidView(factory = { context ->
                PreviewView(context).apply {
                    scaleType = PreviewView.ScaleType.FIT_CENTER
                    controller = camera
                }
            }, Modifier.fillMaxSize())
            if (found != null) Boxes(found, Modifier.fillMaxSize())
        }
        val words = problem.ifEmpty { found?.let { "${it.variant}: ${listShapes(it)}" } ?: "Opening the model ..." }
        Text(words, Modifier.padding(16.dp).semantics { liveRegion = LiveRegionMode.Polite })
        Slider(
            score,
            onScore,
            Modifier.padding(16.dp).semantics { contentDescription = "Least score" },
            valueRange = 0.05f..0.95f,
        )
    }
}

/** Of each label: colours that people with any kind of colour vision tell apart (Okabe and Ito). */
private val COLOURS =
    mapOf("circle" to Color(0xffe69f00), "square" to Color(0xff56b4e9), "triangle" to Color(0xff009e73))

/** Draws boxes over a preview that shows the whole frame, in the middle of the same place. */
@Composable
fun Boxes(found: Found, modifier: Modifier) {
    val measurer = rememberTextMeasurer()
    Canvas(modifier) {
        val scale = minOf(size.width / found.width, size.height / found.height)
        val corner = Offset(size.width - found.width * scale, size.height - found.height * scale) / 2f
        for (shape in found.shapes) {
            val colour = COLOURS[shape.label] ?: Color.White
            val place = corner + Offset(shape.left, shape.top) * scale
            val extent = Size(shape.right - shape.left, shape.bottom - shape.top) * scale
            drawRect(colour, place, extent, style = Stroke(3.dp.toPx()))
            val words = "${shape.label} ${(shape.score * 100).roundToInt()} %"
            drawText(measurer.measure(words, TextStyle(Color.Black, background = colour)), topLeft = place)
        }
    }
}

/** Returns what is found in words, for people who do not see the boxes: "2 circles, 1 square". */
private fun listShapes(found: Found): String {
    val counts = found.shapes.groupingBy { it.label }.eachCount()
    return counts.map { (label, count) -> "$count $label${if (count > 1) "s" else ""}" }.joinToString().ifEmpty { "no shapes" }
}
