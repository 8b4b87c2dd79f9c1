package edgepack.proof

import android.graphics.Bitmap
import java.io.File
import java.nio.ByteBuffer
import java.nio.ByteOrder
import org.json.JSONArray
import org.json.JSONObject

/**
 * Writes what this side makes of every case that vectors.py, refusals.py and kotlin_vectors.py of tests/mobile wrote,
 * in folders of the same names.
 *
 * Arguments: the folder with the cases, and the one to write to.
 */
fun main(arguments: Array<String>) {
    val (cases, results) = arguments.map(::File)
    requireScaled()
    cases(cases, "images").forEach { writeTensor(it, into(results, "images", it).resolve("tensor.bin")) }
    cases(cases, "answers").forEach { write(answers(it), into(results, "answers", it)) }
    cases(cases, "refused").forEach { into(results, "refused", it).resolve("found.txt").writeText(refusal(it)) }
    cases(cases, "wordpiece").forEach { write(tokens(it), into(results, "wordpiece", it)) }
}

/** Models that scale pictures themselves get none that would take gigabytes. */
private fun requireScaled() {
    val resize = Resize.ShortSideCrop(256, 224)
    resize.place(4096, 1).requireScaled()
    val refusal = runCatching { resize.place(1, 4097).requireScaled() }.exceptionOrNull()?.message
    val wanted = "the picture of 1 x 4097 pixels would become 256 x 1048832 in the model before it is cut"
    check(refusal == "$wanted: cut its ends off first") { "$refusal" }
}

private fun cases(folder: File, kind: String): List<File> = folder.resolve(kind).listFiles().orEmpty().sorted()

private fun into(results: File, kind: String, case: File): File =
    results.resolve(kind).resolve(case.name).apply { mkdirs() }

private fun write(found: JSONArray, folder: File) = folder.resolve("found.json").writeText(found.toString())

private fun read(case: File): JSONObject = JSONObject(case.resolve("case.json").readText())

private fun writeTensor(case: File, file: File) {
    val json = read(case)
    val width = json.getInt("width")
    val height = json.getInt("height")
    val bytes = case.resolve("pixels.bin").readBytes()
    val description = ImageDescription.of(json.getJSONObject("description"))
    val found = makeImageTensor(Pixels.of(ByteBuffer.wrap(bytes), width, height), description).tensor.data
    val argb = packed(bytes, width * height)
    val others = listOf(Pixels.of(argb, width, height), Pixels.of(Bitmap(argb, width, height)))
    for (pixels in others) {
        check(makeImageTensor(pixels, description).tensor.data.contentEquals(found)) { "$case: the ways in differ" }
    }
    val buffer = ByteBuffer.allocate(4 * found.size).order(ByteOrder.LITTLE_ENDIAN)
    found.forEach(buffer::putFloat)
    file.writeBytes(buffer.array())
}

private fun packed(bytes: ByteArray, count: Int): IntArray {
    val size = bytes.size / count
    return IntArray(count) { pixel ->
        val (red, green, blue) = List(3) { bytes[pixel * size + it].toInt() and 0xff }
        val alpha = if (size == 4) bytes[pixel * size + 3].toInt() else 255
        alpha shl 24 or (red shl 16) or (green shl 8) or blue
    }
}

private fun tensor(json: JSONObject, case: File): Tensor {
    val shape = json.getJSONArray("shape").let { axes -> LongArray(axes.length()) { axes.getLong(it) } }
    val bytes = ByteBuffer.wrap(case.resolve(json.getString("path")).readBytes())
    return Dtype.of(json.getString("dtype")).decode(shape, bytes)
}

private fun answers(case: File): JSONArray {
    val json = read(case)
    val description = json.getJSONObject("description")
    val output = tensor(json.getJSONArray("outputs").getJSONObject(0), case)
    val labels = json.getJSONArray("labels").let { names -> List(names.length()) { names.getString(it) } }
    return when (val kind = description.getString("kind")) {
        "classification" -> asJson(findClasses(output, description, labels))
        "detection" -> {
            val image = json.getJSONObject("image")
            val resize = ImageDescription.of(image.getJSONObject("description")).resize
            val place = resize.place(image.getInt("width"), image.getInt("height"))
            boxesAsJson(findObjects(output, description, labels, place))
        }
        "embedding" -> {
            val vectors = makeVectors(output, description, json.optJSONObject("mask")?.let { tensor(it, case) })
            JSONArray(vectors.map { vector -> JSONArray(vector.map { it.toDouble() }) })
        }
        else -> error("no answers of the kind $kind")
    }
}

private fun refusal(case: File): String =
    try {
        "no refusal, but ${answers(case)}"
    } catch (error: IllegalArgumentException) {
        "${error.message}"
    }

private fun asJson(found: List<Classification>) =
    JSONArray(found.map { fields(it.index, it.label, it.score) })

private fun boxesAsJson(found: List<Detection>) =
    JSONArray(
        found.map {
            val box = listOf(it.left, it.top, it.right, it.bottom).map(Float::toDouble)
            fields(it.index, it.label, it.score).put("box", JSONArray(box))
        },
    )

private fun fields(index: Int, label: String?, score: Float): JSONObject =
    JSONObject().put("index", index).put("label", label ?: JSONObject.NULL).put("score", score.toDouble())

private fun tokens(case: File): JSONArray {
    val json = read(case)
    val tokenizer = WordPiece(JSONObject(case.resolve("tokenizer.json").readText()))
    val texts = json.getJSONArray("texts")
    return JSONArray(
        List(texts.length()) {
            val text = texts.getJSONObject(it)
            val found = tokenizer.encode(text.getString("text"), json.getInt("length"), json.getBoolean("pad"))
            JSONObject()
                .put("input_ids", JSONArray(found.inputIds.toList()))
                .put("attention_mask", JSONArray(found.attentionMask.toList()))
                .put("token_type_ids", JSONArray(found.tokenTypeIds.toList()))
        },
    )
}
