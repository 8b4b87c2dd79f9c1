package shapes

import android.Manifest
import android.os.Bundle
import androidx.activity.ComponentActivity
import androidx.activity.compose.setContent
import androidx.activity.result.contract.ActivityResultContracts
import androidx.camera.core.CameraSelector
import androidx.camera.core.ImageAnalysis
import androidx.camera.view.LifecycleCameraController
import androidx.compose.foundation.isSystemInDarkTheme
import androidx.compose.material3.MaterialTheme
import androidx.compose.material3.Surface
import androidx.compose.material3.darkColorScheme
import androidx.compose.material3.lightColorScheme
import androidx.compose.runtime.getValue
import androidx.compose.runtime.mutableFloatStateOf
import androidx.compose.runtime.mutableStateOf
import androidx.compose.runtime.setValue
import androidx.core.content.ContextCompat
import java.util.concurrent.ExecutionException

/** Asks for the camera, and brings its frames to the model and what is found to the screen. */
class MainActivity : ComponentActivity() {
    private lateinit var camera: LifecycleCameraController
    private lateinit var finder: ShapeFinder
    private var found by mutableStateOf<Found?>(null)
    private var problem by mutableStateOf("")
    private var score by mutableFloatStateOf(LEAST_SCORE)

    private val permission =
        registerForActivityResult(ActivityResultContracts.RequestPermission()) { isGranted ->
            if (isGranted) startCamera() else problem = "This app may not use the camera: allow it in Android's settings."
        }

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        camera = LifecycleCameraController(this)
        finder =
            ShapeFinder(
                applicationContext,
                show = { runOnUiThread { show(it) } },
                explain = { runOnUiThread { problem = it } },
            )
        setContent {
            MaterialTheme(if (isSystemInDarkTheme()) darkColorScheme() else lightColorScheme()) {
                Surface { ShapesScreen(camera, found, problem, score, ::changeScore) }
            }
        }
        permission.launch(Manifest.permission.CAMERA)
    }

    private fun show(newest: Found) {
        found = newest
        problem = ""
    }

    private fun changeScore(least: Float) {
        score = least
        finder.score = least.toDouble()
    }

    private fun startCamera() {
        camera.imageAnalysisBackpressureStrategy = ImageAnalysis.STRATEGY_KEEP_ONLY_LATEST
        camera.setImageAnalysisAnalyzer(finder.executor, finder)
        val ready = camera.initializationFuture
        ready.addListener({ if (!isDestroyed) tell(bind { ready.get() }) }, ContextCompat.getMainExecutor(this))
    }

    /** Shows a problem, if there is one; the model may have had another before. */
    private fun tell(found: String) {
        if (found.isNotEmpty()) problem = found
    }

    /** Starts the camera; returns why there is none, or nothing. */
    private fun bind(await: () -> Unit): String =
        try {
            await()
            if (camera.hasCamera(CameraSelector.DEFAULT_BACK_CAMERA)) {
                camera.bindToLifecycle(this)
                ""
            } else {
                "There is no camera on the back of this device."
            }
        } catch (error: ExecutionException) {
            "The camera does not start: ${error.cause?.message}"
        }

    override fun onDestroy() {
        camera.clearImageAnalysisAnalyzer()
        finder.close()
        super.onDestroy()
    }
}
