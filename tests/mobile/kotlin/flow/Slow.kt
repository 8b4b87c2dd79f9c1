package edgepack.subject

import android.content.ContextWrapper
import android.content.pm.ApplicationInfo
import android.content.res.AssetManager
import android.os.Looper
import java.io.File
import java.io.IOException
import java.util.concurrent.Executors
import java.util.concurrent.atomic.AtomicInteger
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.asCoroutineDispatcher
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.coroutineScope
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.consumeAsFlow
import kotlinx.coroutines.flow.emitAll
import kotlinx.coroutines.flow.flow
import kotlinx.coroutines.flow.onEach
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.launch
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withContext
import org.json.JSONObject

/** Stands in for an app: assets in a file, folders for its cache and libraries. */
private class Phone(private val folder: File) : ContextWrapper(null) {
    override fun getAssets(): AssetManager = AssetManager(folder.resolve("apk"), folder.resolve("index"))

    override fun getCodeCacheDir(): File = folder.resolve("cache")

    override fun getApplicationInfo(): ApplicationInfo = ApplicationInfo().apply { nativeLibraryDir = "/app/lib" }
}

private const val FOREVER = Long.MAX_VALUE
private const val A_WHILE = 20_000L
private const val FRAMES = 100

/** A camera's frame: there are few, so that each has to be closed, once. */
private class Frame(val number: Int) : AutoCloseable {
    private val closed = AtomicInteger()

    val isClosed: Boolean get() = closed.get() > 0

    override fun close() = check(closed.incrementAndGet() == 1) { "$number is closed twice" }
}

/** The model adds up as many ones as it is told, times a factor of a table with two. */
private fun inputs(turns: Long, which: Long = 0) = Slow.Inputs(LongTensor(listOf(turns), 1), LongTensor(listOf(which), 1))

/** Uses a slow model in coroutines, and prints what came of it as JSON. */
fun main(arguments: Array<String>) {
    val folder = File(arguments[0])
    val main = Executors.newSingleThreadExecutor { work ->
        Thread {
            Looper.becomeMain()
            work.run()
        }.apply { isDaemon = true }
    }.asCoroutineDispatcher()
    val found = runBlocking(main) {
        val model = Slow.awaitOpen(Phone(folder))
        check(model.awaitPredict(inputs(3)) == withContext(Dispatchers.Default) { model.predict(inputs(3)) })
        JSONObject()
            .put("ticks", ticksMeanwhile(model))
            .put("cancelled", cancelled(model))
            .put("refused", refused { model.awaitPredict(inputs(3, which = 7)) })
            .put("unshaped", refused { model.awaitPredict(Slow.Inputs(LongTensor(listOf(1L, 2L), 2), inputs(1).which)) })
            .put("unknown", refused { Slow.awaitOpen(Phone(folder), "no-such") })
            .put("empty", refused { Slow.awaitOpen(Phone(folder), source = ModelSource.folder(folder.resolve("none"))) })
            .put("unopened", cancelOpening(folder))
            .put("answered", newest(model))
            .put("stopped", stopFlow(model))
            .put("camera", refused { brokenCamera(model) })
            .put("model", refused { brokenModel(model) })
            .put("closed", closeMeanwhile(model))
    }
    println(found)
}

private suspend fun refused(call: suspend () -> Any?): String =
    try {
        "it gave ${call()}"
    } catch (error: ModelException) {
        "ModelException ${error.reason}: ${error.message}"
    } catch (error: Exception) {
        "${error.javaClass.simpleName}: ${error.message}"
    }

/** Returns how often the main thread does something else while the model runs. */
private suspend fun ticksMeanwhile(model: Slow): Int {
    var ticks = 0
    coroutineScope {
        val ticking = launch {
            while (true) {
                delay(1)
                ticks++
            }
        }
        model.awaitPredict(inputs(50 * A_WHILE))
        ticking.cancelAndJoin()
    }
    return ticks
}

/** Cancels runs that would not end; the model goes on. */
private suspend fun cancelled(model: Slow): String {
    repeat(20) { number ->
        coroutineScope {
            val running = launch { model.awaitPredict(inputs(FOREVER)) }
            delay(number.toLong())
            running.cancelAndJoin()
        }
    }
    return "${model.awaitPredict(inputs(3)).sum}"
}

private suspend fun cancelOpening(folder: File): String {
    repeat(10) { number ->
        coroutineScope {
            val opening = launch { Slow.awaitOpen(Phone(folder)) }
            delay(5L * number)
            opening.cancelAndJoin()
        }
    }
    return Slow.awaitOpen(Phone(folder)).use { it.variant }
}

/** Gives frames faster than the model runs, and returns the numbers of those that were answered. */
private suspend fun newest(model: Slow): List<Int> {
    val frames = List(FRAMES, ::Frame)
    val running = AtomicInteger()
    val numbers = emitted(frames).predictLatest { frame ->
        check(running.incrementAndGet() == 1 && !frame.isClosed) { "${frame.number} is not alone" }
        model.predict(inputs(A_WHILE))
        check(running.decrementAndGet() == 0 && !frame.isClosed) { "${frame.number} is closed" }
        frame.number
    }.toList()
    requireClosed(frames)
    return numbers
}

private fun emitted(frames: List<Frame>): Flow<Frame> =
    flow {
        for (frame in frames) {
            emit(frame)
            delay(2)
        }
    }

private fun requireClosed(frames: List<Frame>) {
    val open = frames.filterNot { it.isClosed }.map { it.number }
    check(open.isEmpty()) { "not closed: $open" }
}

/** Cancels a flow in a run that would not end; the camera gives frames as the documents say, before and after. */
private suspend fun stopFlow(model: Slow): String {
    val given = mutableListOf<Frame>()
    val channel = Channel<Frame>(Channel.CONFLATED, onUndeliveredElement = Frame::close)
    coroutineScope {
        val camera = launch {
            while (true) {
                val frame = Frame(given.size).also(given::add)
                if (channel.trySend(frame).isFailure) frame.close()
                delay(1)
            }
        }
        val frames = channel.consumeAsFlow()
        val collecting = launch { frames.predictLatest { model.predict(inputs(FOREVER)) }.collect { error("it ended") } }
        while (given.size < 10) delay(1)
        collecting.cancelAndJoin()
        while (given.size < 30) delay(1)
        camera.cancelAndJoin()
    }
    requireClosed(given)
    return "closed"
}

/** The camera fails while the model runs, and a frame waits. */
private suspend fun brokenCamera(model: Slow) {
    val frames = List(3, ::Frame)
    val broken = flow {
        emitAll(emitted(frames))
        throw IOException("no camera")
    }
    try {
        broken.predictLatest { model.predict(inputs(FOREVER)) }.collect { error("it ended") }
    } finally {
        requireClosed(frames)
    }
}

/** The model fails in its first run, and a frame waits. */
private suspend fun brokenModel(model: Slow) {
    val given = mutableListOf<Frame>()
    try {
        emitted(List(FRAMES, ::Frame)).onEach(given::add).predictLatest {
            model.predict(inputs(A_WHILE))
            model.predict(inputs(1, which = 7))
        }.collect { error("it ended") }
    } finally {
        check(given.size in 1 until FRAMES) { "${given.size} were given" }
        requireClosed(given)
    }
}

/** Closes the model on the main thread in a run that would not end: it does not wait for that. */
private suspend fun closeMeanwhile(model: Slow): String {
    val opened = read(model, "opened")
    var refused = ""
    coroutineScope {
        val running = launch { model.awaitPredict(inputs(FOREVER)) }
        delay(100)
        model.close()
        check(running.isActive && read(opened, "isFreed") == false) { "the run ended" }
        refused = refused { model.awaitPredict(inputs(3)) }
        running.cancelAndJoin()
    }
    while (read(opened, "isFreed") == false) delay(1)
    return refused
}

private fun read(owner: Any, field: String): Any =
    owner.javaClass.getDeclaredField(field).apply { isAccessible = true }.get(owner)
