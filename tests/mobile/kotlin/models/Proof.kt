package edgepack.subject

import android.content.ContextWrapper
import android.content.pm.ApplicationInfo
import android.content.res.AssetManager
import android.graphics.Bitmap
import android.os.Looper
import android.system.Os
import com.sun.management.ThreadMXBean
import java.io.File
import java.lang.management.ManagementFactory
import java.nio.ByteBuffer
import java.util.concurrent.ExecutionException
import java.util.concurrent.Executors
import java.util.concurrent.atomic.AtomicInteger
import kotlin.concurrent.thread
import kotlin.random.Random
import org.json.JSONArray
import org.json.JSONObject

/** Stands in for an app: assets in a file, folders for its cache and libraries. */
private class Phone(private val folder: File) : ContextWrapper(null) {
    override fun getAssets(): AssetManager = AssetManager(folder.resolve("apk"), folder.resolve("index"))

    override fun getCodeCacheDir(): File = folder.resolve("cache")

    override fun getApplicationInfo(): ApplicationInfo = ApplicationInfo().apply { nativeLibraryDir = "/app/lib" }
}

private typealias Ways = (Subject, Tensors, String, ByteBuffer, IntArray, Bitmap, Int, Int) -> List<JSONObject>

/** Uses a bundle as an app does: runs the cases of FOLDER/cases.json, and prints what came of it as JSON. */
fun main(arguments: Array<String>) {
    val folder = File(arguments[0])
    val cases = JSONObject(folder.resolve("cases.json").readText())
    val executor = Executors.newSingleThreadExecutor { Thread(it).apply { isDaemon = true } }
    val ids = cases.getJSONArray("variants").let { list -> List(list.length(), list::getString) }
    val found = JSONObject()
    requireEquality()
    found.put("main", refusedOnMain(folder))
    val alone = ids.map { id -> opening { Subject.openAsync(Phone(folder), executor, id).get().use { it.variant } } }
    found.put("alone", JSONArray(alone))
    if (alone.any { it in ids }) {
        use(Subject.openAsync(Phone(folder), executor).get(), cases, folder, found)
    }
    println(found)
}

/** What answers and inputs are made of is equal where all its values are, and only there. */
@OptIn(ForGeneratedCode::class)
private fun requireEquality() {
    val makers: List<() -> Any> = listOf(
        { Mask(1, 2, byteArrayOf(0, 1)) },
        { Mask(2, 1, byteArrayOf(0, 1)) },
        { Mask(1, 2, byteArrayOf(0, 2)) },
        { Mask(1, 2, byteArrayOf(0, 1), listOf("sky")) },
        { Found(Mask(1, 2, byteArrayOf(0, 1))) },
        { Found(Mask(1, 2, byteArrayOf(0, 2))) },
        { Found(listOf(floatArrayOf(1f, 2f))) },
        { Found(listOf(floatArrayOf(1f, 3f))) },
        { Found<Mask>(null, "no picture") },
        { Found<Mask>(null, "two pictures") },
        { FloatTensor(floatArrayOf(1f, 2f), 1, 2) },
        { FloatTensor(floatArrayOf(1f, 2f), 2, 1) },
        { FloatTensor(floatArrayOf(1f, 3f), 1, 2) },
    )
    for ((n, make) in makers.withIndex()) {
        val alike = makers.indices.filter { makers[it]() == make() }
        check(alike == listOf(n) && make().hashCode() == make().hashCode()) { "${make()} is equal to $alike, not $n" }
    }
}

private fun opening(open: () -> String): String =
    try {
        open()
    } catch (error: ExecutionException) {
        "${error.cause?.javaClass?.simpleName}: ${error.cause?.message}"
    }

private fun use(subject: Subject, cases: JSONObject, folder: File, found: JSONObject) {
    found.put("unknown", failing { Subject.open(Phone(folder), "no-such") })
    Subject.openAsync(Phone(folder), Runnable::run, "no-such").whenComplete { _, error -> found.put("async", "$error") }
    found.put("variant", subject.variant)
    found.put("passedOver", JSONArray(subject.passedOver.map { JSONArray(listOf(it.variant, it.reason)) }))
    val test = subject.selfTest()
    found.put("decibels", JSONArray(test.decibels)).put("passed", test.passed)
    found.put("cases", JSONArray(objects(cases, "tensors").map { ran(subject, it, folder) }))
    val first = feed(objects(cases, "tensors").first(), folder)
    val caption = cases.getString("caption")
    for ((name, ways) in listOf("pictures" to ::pictures, "few" to ::few)) {
        val taken = objects(cases, "pictures").map { picture(it, folder, subject, first, caption, ways) }
        found.put(name, JSONArray(taken))
    }
    found.put("misnamed", JSONArray(misnamed(subject, first).map(::failing)))
    val texts = cases.getJSONArray("texts").let { list -> List(list.length(), list::getString) }
    found.put("texts", JSONArray(texts.map { same(text(subject, first, it)) }))
    found.put("boxless", failing { answers(subject.predict(inputs(first))) })
    found.put("fake", faking(subject, first))
    found.put("frames", frames(subject, cases.getJSONArray("frames")))
    halves(folder)
    found.put("threads", threads(subject, first))
    subject.close()
    found.put("closed", failing { subject.selfTest() })
    found.put("environment", JSONObject(Os.set.mapValues { (_, it) -> "${it.first} ${it.second}" }))
}

private fun objects(json: JSONObject, key: String): List<JSONObject> =
    json.getJSONArray(key).let { list -> List(list.length(), list::getJSONObject) }

private fun failing(call: () -> Any?): String =
    try {
        "it gave ${call()}"
    } catch (error: RuntimeException) {
        "${error.javaClass.simpleName}: ${error.message}"
    }

/** Two calls with equal inputs have to give equal outputs, and so a fake that is made of the values of one. */
private fun faking(subject: Subject, feed: Tensors): String {
    val outputs = subject.predict(inputs(feed))
    val again = subject.predict(inputs(feed))
    check(inputs(feed) == inputs(feed.mapValues { (_, it) -> it.of(it.shape.copyOf(), it.array) })) { "inputs are not equal" }
    check(again == outputs && again.hashCode() == outputs.hashCode()) { "$again, not $outputs" }
    // What has no answer, for want of a picture, has no values to make one of.
    val readable = runCatching { answers(outputs) }.isSuccess
    val faked = if (readable) fake(outputs).predict(inputs(feed)) else outputs
    return if (faked == outputs && faked.hashCode() == outputs.hashCode()) "equal" else "$faked, not $outputs"
}

/** Returns how many bytes a predictor allocates for a camera's frame of each size; it has to give what the model does. */
private fun frames(subject: Subject, sizes: JSONArray): JSONArray {
    val (predict, outputs) = steady(subject) ?: return JSONArray()
    val counter = ManagementFactory.getThreadMXBean() as ThreadMXBean
    return JSONArray(
        List(sizes.length(), sizes::getJSONArray).map { size ->
            val picture = frame(size.getInt(0), size.getInt(1))
            // What is compiled meanwhile does not allocate where it did before.
            repeat(4) { predict(picture) }
            val before = counter.currentThreadAllocatedBytes
            repeat(3) { predict(picture) }
            val bytes = (counter.currentThreadAllocatedBytes - before) / 3
            check(outputs() == again(subject, picture)) { "a predictor gives other outputs than the model" }
            bytes
        },
    )
}

private fun frame(width: Int, height: Int): Picture {
    val random = Random(width)
    val half = (width + 1) / 2 to (height + 1) / 2
    val (y, u, v) = listOf(width to height, half, half).map { (columns, rows) ->
        val bytes = ByteBuffer.allocateDirect(columns * rows)
        for (n in 0 until bytes.capacity()) bytes.put(n, random.nextInt().toByte())
        Plane(bytes, columns, 1)
    }
    return Picture.of(y, u, v, width, height, 90)
}

private fun refusedOnMain(folder: File): String {
    var found = ""
    thread {
        Looper.becomeMain()
        found = failing { Subject.open(Phone(folder)) }
    }.join()
    return found
}

private fun feed(case: JSONObject, folder: File): Tensors =
    objects(case, "inputs").associate { entry ->
        val shape = entry.getJSONArray("shape").let { list -> LongArray(list.length(), list::getLong) }
        val bytes = ByteBuffer.wrap(folder.resolve(entry.getString("path")).readBytes())
        entry.getString("name") to Dtype.of(entry.getString("dtype")).decode(shape, bytes)
    }

/** Runs a case and writes its outputs as `<case>-<number>.bin`; returns their shapes, or what was wrong. */
private fun ran(subject: Subject, case: JSONObject, folder: File): Any =
    try {
        val outputs = typed(subject.predict(inputs(feed(case, folder))))
        val shapes = outputs.entries.mapIndexed { number, (dtype, tensor) ->
            val file = folder.resolve("${case.getString("id")}-$number.bin")
            file.outputStream().channel.use { it.write(Dtype.of(dtype.substringBefore(" ")).encode(tensor)) }
            JSONArray(tensor.shape.toList())
        }
        JSONArray(shapes)
    } catch (error: IllegalArgumentException) {
        "${error.message}"
    }

/** Converts FOLDER/floats.bin to float16 and FOLDER/halves.bin to float32, where they are there. */
private fun halves(folder: File) {
    for ((name, from, to) in listOf(
        Triple("floats", Dtype.FLOAT32, Dtype.FLOAT16),
        Triple("halves", Dtype.FLOAT16, Dtype.FLOAT32),
    )) {
        val given = folder.resolve("$name.bin")
        if (!given.exists()) continue
        val tensor = from.decode(longArrayOf(given.length() / from.bytes), ByteBuffer.wrap(given.readBytes()))
        folder.resolve("$name.out").outputStream().channel.use { it.write(to.encode(tensor)) }
    }
}

/** Gives a picture as bytes, as numbers and as a bitmap, and returns the answers, which have to be the same. */
private fun picture(case: JSONObject, folder: File, subject: Subject, feed: Tensors, text: String, ways: Ways): JSONObject {
    val (width, height) = case.getInt("width") to case.getInt("height")
    val rgb = folder.resolve(case.getString("path")).readBytes()
    val argb = IntArray(width * height) { n ->
        fun channel(c: Int) = rgb[3 * n + c].toInt() and 0xff
        (0xff shl 24) or (channel(0) shl 16) or (channel(1) shl 8) or channel(2)
    }
    val bitmap = Bitmap(argb, width, height)
    return same(ways(subject, feed, text, ByteBuffer.wrap(rgb), argb, bitmap, width, height))
}

private fun same(found: List<JSONObject>): JSONObject {
    check(found.map { "$it" }.toSet().size == 1) { "the ways of giving it differ: $found" }
    return found.first()
}

/** Calls from eight threads have to give what one gives, and closing meanwhile has to wait for those that run. */
private fun threads(subject: Subject, feed: Tensors): String {
    val expected = bytes(subject, feed)
    val equal = AtomicInteger()
    val callers = List(8) {
        thread { repeat(25) { if (bytes(subject, feed).contentEquals(expected)) equal.incrementAndGet() } }
    }
    callers.forEach { it.join() }
    val calls = AtomicInteger()
    val ends = AtomicInteger()
    val late = List(4) {
        thread {
            try {
                while (true) {
                    bytes(subject, feed)
                    calls.incrementAndGet()
                }
            } catch (closed: IllegalStateException) {
                ends.incrementAndGet()
            }
        }
    }
    while (calls.get() < 20) Thread.sleep(1)
    subject.close()
    late.forEach { it.join() }
    return "${equal.get()} of 200 equal, ${ends.get()} of 4 ended by closing"
}

private fun bytes(subject: Subject, feed: Tensors): ByteArray {
    val parts = typed(subject.predict(inputs(feed))).map { (dtype, tensor) ->
        val buffer = Dtype.of(dtype.substringBefore(" ")).encode(tensor)
        ByteArray(buffer.remaining()).also(buffer::get)
    }
    return parts.fold(ByteArray(0), ByteArray::plus)
}
