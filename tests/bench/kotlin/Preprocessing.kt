package edgepack.proof

import ai.onnxruntime.OnnxTensor
import ai.onnxruntime.OrtEnvironment
import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder
import kotlin.random.Random
import org.json.JSONArray
import org.json.JSONObject

/**
 * Times what makes an input of a frame, and the model's run on it, in turn; prints the seconds of each round as JSON.
 *
 * Arguments: a file with the input's description, the model's, the number of rounds, and FORMAT:WIDTH:HEIGHT:ROTATION for
 * each frame; with `:prescale` behind it, averages of its blocks are made first.
 */
fun main(arguments: Array<String>) {
    val (described, model, rounds) = arguments
    val description = ImageDescription.of(JSONObject(File(described).readText()))
    val environment = OrtEnvironment.getEnvironment()
    val session = environment.createSession(model)
    val found = JSONObject()
    for (case in arguments.drop(3)) {
        val picture = makeFrame(case)
        val maker = ImageMaker(description, picture.width, picture.height, prescale = case.endsWith(":prescale"))
        val values = FloatArray(maker.shape.fold(1L, Long::times).toInt())
        val bytes = ByteBuffer.allocateDirect(4 * values.size).order(ByteOrder.nativeOrder())
        val tensor = OnnxTensor.createTensor(environment, bytes.asFloatBuffer(), maker.shape)
        val name = session.inputNames.single()

        fun make() {
            maker.make(picture, values)
            bytes.asFloatBuffer().put(values)
        }

        fun run() = session.run(mapOf(name to tensor)).close()
        // Until the virtual machine has compiled it.
        val began = System.nanoTime()
        while (System.nanoTime() - began < WARM_NS) make()
        run()
        found.put(case, JSONArray(List(rounds.toInt()) { JSONArray(listOf(time(::make), time(::run))) }))
    }
    println(found)
}

private const val WARM_NS = 3_000_000_000

private fun time(work: () -> Unit): Double {
    val began = System.nanoTime()
    work()
    return (System.nanoTime() - began) / 1e9
}

private fun makeFrame(case: String): Picture {
    val (format, width, height, rotation) = case.split(":")
    val (columns, rows) = listOf(width, height).map(String::toInt)
    val random = Random(columns)

    fun plane(columns: Int, rows: Int, size: Int): Plane {
        val bytes = ByteBuffer.allocateDirect(columns * rows * size)
        // Smooth, with some noise, as photographs are.
        val row = columns * size
        for (at in 0 until bytes.capacity()) bytes.put(at, (at % row * 200 / row + random.nextInt(16)).toByte())
        return Plane(bytes, columns * size, size)
    }
    if (format == "rgba") {
        val pixels = plane(columns, rows, 4)
        // Opaque, as a camera's are.
        for (at in 3 until pixels.bytes.capacity() step 4) pixels.bytes.put(at, -1)
        return Picture.of(pixels.bytes, columns, rows, pixels.rowStride, PixelOrder.RGBA, rotation.toInt())
    }
    val (y, u, v) = List(3) { if (it == 0) plane(columns, rows, 1) else plane((columns + 1) / 2, (rows + 1) / 2, 2) }
    return Picture.of(y, u, v, columns, rows, rotation.toInt())
}
