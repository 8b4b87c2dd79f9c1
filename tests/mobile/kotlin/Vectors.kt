package edgepack.proof

import android.graphics.Bitmap
import android.graphics.ImageFormat
import android.graphics.PixelFormat
import android.hardware.DataSpace
import android.media.Image
import android.os.Build
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
    requireImages()
    requireMasks()
    cases(cases, "images").forEach { writeTensor(it, into(results, "images", it).resolve("tensor.bin")) }
    cases(cases, "frames").forEach { writeFrame(it, into(results, "frames", it)) }
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

/** Outputs that are no masks are refused; Python gives the tensor, or names all classes. */
private fun requireMasks() {
    val description = JSONObject("""{"axis": 1, "threshold": 0.5}""")
    val place = Resize.Stretch(2, 1).place(2, 1)

    fun requireRefused(wanted: String, output: Tensor) {
        val error = runCatching { findMask(Values.of(output), description, emptyList(), place) }.exceptionOrNull()
        check(error is IllegalArgumentException && wanted in error.message.orEmpty()) { "$error, not: $wanted" }
    }
    requireRefused("the class 255", IntTensor(intArrayOf(254, 255), 1, 1, 2))
    requireRefused("the class -1", IntTensor(intArrayOf(-1, 0), 1, 1, 2))
    requireRefused("2 integers for each place", IntTensor(intArrayOf(0, 1), 1, 2, 1, 1))
    requireRefused("a mask is that of one picture", IntTensor(intArrayOf(0, 1), 2, 1, 1))
    requireRefused("a mask is that of one picture", IntTensor(intArrayOf(0, 1), 1, 2))
    requireRefused("a mask is that of one picture", IntTensor(intArrayOf(), 1, 0, 2))
}

/** An image that is closed, of a format or with colours that are not taken is refused; what is said of its colours counts. */
private fun requireImages() {
    val planes = listOf(8 to 4, 2 to 2, 2 to 2).map { (size, row) -> Plane(ByteBuffer.allocate(size), row, 1) }

    fun image(format: Int = ImageFormat.YUV_420_888, space: Int = 0) = CameraImage(format, 4, 2, planes, space)

    fun requireRefused(image: Image, wanted: String) {
        val error = runCatching { Picture.of(image, 0) }.exceptionOrNull()
        check(error is IllegalArgumentException && error.message == wanted) { "$error" }
    }
    requireRefused(image().apply { close() }, "the image is closed: its pixels are gone")
    requireRefused(image(256), "the image has the format 256: give one of YUV_420_888 (35) or RGBA_8888 (1)")
    requireRefused(image(PixelFormat.RGBA_8888), "the frame has 3 planes, rgba has 1")
    val wide = DataSpace.pack(DataSpace.STANDARD_BT2020, DataSpace.TRANSFER_HLG, DataSpace.RANGE_FULL)
    requireRefused(
        image(space = wide),
        "the image has the colours of BT.2020, which are not converted: give another image, or say 'matrix'",
    )
    val video = DataSpace.pack(DataSpace.STANDARD_BT709, DataSpace.TRANSFER_SMPTE_170M, DataSpace.RANGE_LIMITED)
    val said = image(space = video)
    val (y, u, v) = planes
    val full = pixels(Picture.of(y, u, v, 4, 2))
    val asTold = pixels(Picture.of(said, 0, YuvMatrix.BT601, YuvRange.FULL))
    check(asTold.contentEquals(full) && said.asked == 0) { "the data space counts" }
    check(!pixels(Picture.of(said, 0)).contentEquals(full)) { "the data space does not count" }
    Build.VERSION.SDK_INT = 32
    check(pixels(Picture.of(said, 0)).contentEquals(full) && said.asked == 1) { "Android 12 has no data space" }
    Build.VERSION.SDK_INT = 34
}

private fun cases(folder: File, kind: String): List<File> = folder.resolve(kind).listFiles().orEmpty().sorted()

private fun into(results: File, kind: String, case: File): File =
    results.resolve(kind).resolve(case.name).apply { mkdirs() }

private fun write(found: Any, folder: File) = folder.resolve("found.json").writeText(found.toString())

private fun read(case: File): JSONObject = JSONObject(case.resolve("case.json").readText())

private fun writeTensor(case: File, file: File) {
    val json = read(case)
    val width = json.getInt("width")
    val height = json.getInt("height")
    val bytes = case.resolve("pixels.bin").readBytes()
    val description = ImageDescription.of(json.getJSONObject("description"))
    val found = makeImageTensor(Picture.of(ByteBuffer.wrap(bytes), width, height), description).data
    val argb = packed(bytes, width * height)
    val others = listOf(Picture.of(argb, width, height), Picture.of(Bitmap(argb, width, height)))
    for (picture in others) {
        check(makeImageTensor(picture, description).data.contentEquals(found)) { "$case: the ways in differ" }
    }
    writeFloats(found, file)
}

/** Writes a frame's pixels and its tensor; as an image of Android's, where it can be one, it has to give the same. */
private fun writeFrame(case: File, folder: File) {
    val json = read(case)
    val found = frame(json, case)
    val pixels = pixels(found)
    image(json, case)?.let { check(pixels(it).contentEquals(pixels)) { "$case: the image differs from the frame" } }
    folder.resolve("rgb.bin").writeBytes(pixels)
    val description = ImageDescription.of(json.getJSONObject("description"))
    writeFloats(makeImageTensor(found, description).data, folder.resolve("tensor.bin"))
    val maker = ImageMaker(description, found.width, found.height, prescale = true)
    val values = FloatArray(maker.shape.fold(1L, Long::times).toInt())
    // A second picture finds what the first has left.
    repeat(2) { maker.make(found, values) }
    writeFloats(values, folder.resolve("prescaled.bin"))
}

private fun planes(json: JSONObject, case: File): List<Plane> {
    val planes = json.getJSONArray("planes")
    return List(planes.length(), planes::getJSONObject).map {
        val bytes = ByteBuffer.wrap(case.resolve(it.getString("path")).readBytes())
        bytes.position(it.getInt("offset"))
        Plane(bytes, it.getInt("row_stride"), it.getInt("pixel_stride"))
    }
}

private fun frame(json: JSONObject, case: File): Picture {
    val planes = planes(json, case)
    val (width, height, rotation) = listOf("width", "height", "rotation").map(json::getInt)
    val format = json.getString("format")
    if (format != "yuv420") {
        val order = PixelOrder.valueOf(format.uppercase())
        val plane = planes.single()
        if (plane.pixelStride != order.bytes) return readPixels(plane, width, height, order, rotation)
        return Picture.of(plane.bytes, width, height, plane.rowStride, order, rotation)
    }
    // The type has three planes: another number can come as an image alone.
    if (planes.size != 3) return image(json, case)!!
    val (y, u, v) = planes
    return Picture.of(y, u, v, width, height, rotation, matrix(json), range(json))
}

private fun matrix(json: JSONObject): YuvMatrix = YuvMatrix.valueOf(json.getString("matrix").uppercase())

private fun range(json: JSONObject): YuvRange = YuvRange.valueOf(json.getString("range").uppercase())

/** Returns a frame as an image of Android's whose data space says its colours; null for orders that it does not have. */
private fun image(json: JSONObject, case: File): Picture? {
    val formats = mapOf("yuv420" to ImageFormat.YUV_420_888, "rgba" to PixelFormat.RGBA_8888)
    val format = formats[json.getString("format")] ?: return null
    val standard = if (matrix(json) == YuvMatrix.BT709) DataSpace.STANDARD_BT709 else DataSpace.STANDARD_BT601_625
    val range = if (range(json) == YuvRange.VIDEO) DataSpace.RANGE_LIMITED else DataSpace.RANGE_FULL
    val space = DataSpace.pack(standard, DataSpace.TRANSFER_SRGB, range)
    val image = CameraImage(format, json.getInt("width"), json.getInt("height"), planes(json, case), space)
    return Picture.of(image, json.getInt("rotation"))
}

private fun pixels(picture: Picture): ByteArray {
    val row = ByteArray(3 * picture.width)
    val all = ByteArray(row.size * picture.height)
    val rows = picture.open(Scratch())
    for (y in 0 until picture.height) {
        rows.read(y, row)
        row.copyInto(all, y * row.size)
    }
    return all
}

private fun writeFloats(values: FloatArray, file: File) {
    val buffer = ByteBuffer.allocate(4 * values.size).order(ByteOrder.LITTLE_ENDIAN)
    values.forEach(buffer::putFloat)
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

private fun answers(case: File): Any {
    val json = read(case)
    val description = json.getJSONObject("description")
    val given = json.getJSONArray("outputs")
    val outputs = List(given.length()) { Values.of(tensor(given.getJSONObject(it), case)) }
    val output = outputs[0]
    val labels = json.getJSONArray("labels").let { names -> List(names.length()) { names.getString(it) } }
    val options = json.optJSONObject("options")?.let(::options) ?: DEFAULTS
    return when (val kind = description.getString("kind")) {
        "classification" -> asJson(findClasses(output, description, labels, options))
        "detection" -> {
            val priors = (json.opt("priors") as? String)?.let(::readPriors)
            boxesAsJson(findObjects(outputs, description, labels, placement(json), options, priors))
        }
        "embedding" -> {
            val mask = json.optJSONObject("mask")?.let { Values.of(tensor(it, case)) }
            JSONArray(makeVectors(output, description, mask).map { vector -> JSONArray(vector.map { it.toDouble() }) })
        }
        "mask" -> maskAsJson(findMask(output, description, labels, placement(json)))
        "probability" ->
            JSONArray(
                decide(output, description).map {
                    JSONObject().put("score", it.score.toDouble()).put("positive", it.positive)
                },
            )
        "text" -> {
            val (text, score) = transcribe(output, description, labels)
            JSONObject().put("text", text).put("score", score.toDouble())
        }
        else -> error("no answers of the kind $kind")
    }
}

private fun placement(json: JSONObject): Placement {
    val image = json.getJSONObject("image")
    val resize = ImageDescription.of(image.getJSONObject("description")).resize
    return resize.place(image.getInt("width"), image.getInt("height"))
}

private fun options(json: JSONObject): AnswerOptions =
    AnswerOptions(
        score = (json.opt("score") as? Number)?.toDouble(),
        iou = (json.opt("iou") as? Number)?.toDouble(),
        most = (json.opt("most") as? Number)?.toInt(),
        top = (json.opt("top") as? Number)?.toInt(),
        allow = json.optJSONArray("allow")?.let { labels -> List(labels.length()) { labels.getString(it) } },
    )

private fun maskAsJson(mask: Mask): JSONObject {
    val runs = mutableListOf<IntArray>()
    for (found in mask.classes.map { it.toInt() and 0xff }) {
        if (runs.lastOrNull()?.get(0) == found) runs.last()[1]++ else runs += intArrayOf(found, 1)
    }
    return JSONObject().put("width", mask.width).put("height", mask.height).put("runs", JSONArray(runs.map { JSONArray(it) }))
}

private fun refusal(case: File): String =
    try {
        val json = read(case)
        "no refusal, but ${if (json.has("planes")) pixels(frame(json, case)).toList() else answers(case)}"
    } catch (error: IllegalArgumentException) {
        "${error.message}"
    }

private fun asJson(found: List<Classification>) =
    JSONArray(found.map { fields(it.index, it.label, it.score) })

private fun boxesAsJson(found: List<Detection>) =
    JSONArray(
        found.map {
            val box = listOf(it.left, it.top, it.right, it.bottom).map(Float::toDouble)
            val points = it.keypoints.map(::pointAsJson)
            fields(it.index, it.label, it.score)
                .put("box", JSONArray(box))
                .put("keypoints", if (points.isEmpty()) null else JSONArray(points))
        },
    )

private fun pointAsJson(point: Keypoint): JSONObject =
    JSONObject()
        .put("x", point.x.toDouble())
        .put("y", point.y.toDouble())
        .put("score", point.score?.toDouble() ?: JSONObject.NULL)

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
