import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.async
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.coroutineScope
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.flow
import kotlinx.coroutines.launch

// An app that uses what is in this file depends on org.jetbrains.kotlinx:kotlinx-coroutines-core, 1.8 or newer. Other apps
// need no such library.

/**
 * Gives each frame to [predict] and emits what it returns: one frame at a time, always the newest. Frames that come
 * meanwhile are dropped; the last one is not.
 *
 * [predict] blocks: it is called on threads of [Dispatchers.IO], and may use a model or its predictor. If the flow's coroutine
 * is cancelled, the run in it ends after the operator that it is at.
 *
 * Frames that can be closed (an [AutoCloseable], such as an `Image` or CameraX's `ImageProxy`) are closed: those that are
 * dropped at once, the others after [predict]. What does not arrive here, because a flow before this one keeps it or
 * cannot send it, its sender has to close.
 */
fun <F : Any, R> Flow<F>.predictLatest(predict: (F) -> R): Flow<R> =
    flow {
        coroutineScope {
            val newest = Channel<F>(Channel.CONFLATED, onUndeliveredElement = ::closeFrame)
            launch {
                collect(newest::send)
                newest.close()
            }
            try {
                for (frame in newest) emit(answer(frame, predict))
            } finally {
                newest.cancel()
            }
        }
    }

@OptIn(ForGeneratedCode::class)
private suspend fun <F : Any, R> answer(frame: F, predict: (F) -> R): R =
    try {
        awaitCall { predict(frame) }
    } finally {
        closeFrame(frame)
    }

private fun closeFrame(frame: Any) {
    (frame as? AutoCloseable)?.close()
}

/** Makes a call that blocks, and waits for its end; if the coroutine is cancelled, runs of onnxruntime in it end early. */
@ForGeneratedCode
suspend fun <T> awaitCall(call: () -> T): T =
    coroutineScope {
        val stop = Stop()
        val running = async(Dispatchers.IO) { stop.during(call) }
        try {
            running.await()
        } catch (cancelled: CancellationException) {
            stop.call()
            throw cancelled
        }
    }
