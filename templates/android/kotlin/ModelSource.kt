import android.content.Context
import android.content.res.AssetManager
import java.io.File
import java.io.FileInputStream
import java.io.FileNotFoundException
import java.io.IOException
import java.io.InputStream
import java.nio.ByteBuffer
import java.nio.channels.FileChannel
import java.security.GeneralSecurityException
import java.security.MessageDigest

private const val BUFFER = 1 shl 16

/** The folders with what the code reads beside `manifest.json`. */
private val FOLDERS = listOf("models", "golden", "files")

/** Where the model's files come from. */
class ModelSource private constructor(internal val signer: Signer?, internal val connect: (Context, root: String) -> Place) {
    /**
     * Returns the same source, from which only a bundle is opened that has a signature (`edgepack sign`) by this key.
     *
     * @param key the content of the `.pub` file of an Ed25519 key, or a line of ssh-keygen's allowed signers with one, whose
     * `valid-after` and `valid-before` count.
     * @throws IllegalArgumentException if it has no such key, says a time that is none, or lists namespaces without `edgepack`.
     */
    fun signedBy(key: String): ModelSource = ModelSource(Signer.parse(key), connect)

    companion object {
        /** The app's assets, into which the build of the model's module puts the files. */
        @JvmField
        val ASSETS = ModelSource(null) { context, root -> Packed(context.assets, root) }

        /**
         * A folder, for example of on-demand delivery or of a download.
         *
         * It contains `manifest.json`, `models/`, `golden/` and `files/` of the bundle; other files beside them are not read.
         */
        @JvmStatic
        fun folder(folder: File): ModelSource = ModelSource(null) { _, _ -> Folder(folder) }

        /**
         * The app's own function, for example one that decrypts. Nothing that it returns is written to a file, so it cannot give
         * models whose weights are in files of their own.
         *
         * @param read returns the bytes of a path in the bundle, such as `models/cpu-fp32.onnx`, as a stream that the model
         * closes; it throws an `IOException` where it cannot. The model calls it for some files more than once.
         */
        @JvmStatic
        fun function(read: (path: String) -> InputStream): ModelSource = ModelSource(null) { _, _ -> Given(read) }
    }
}

/** A place with a bundle's files. */
internal interface Place {
    /** The folder with the files, where they are files of their own. */
    val folder: File? get() = null

    /** Whether files may be copied into the app's cache. */
    val isOpen: Boolean get() = true

    /** Returns a path as messages name it. */
    fun name(path: String): String

    /** @throws IOException if there is no such file. */
    fun open(path: String): InputStream

    /** Returns a file's bytes, mapped; null where the file can only be read. */
    fun map(path: String): ByteBuffer? = null

    /** Returns all files in [FOLDERS], each with what changes when the file does; nothing where files cannot be listed. */
    fun list(): Map<String, String> = emptyMap()
}

private class Packed(private val manager: AssetManager, private val root: String) : Place {
    override fun name(path: String): String = "$root/$path"

    override fun open(path: String): InputStream = manager.open(name(path))

    /** The app decides what it compresses: `androidResources { noCompress += listOf("onnx", "ort") }`. */
    override fun map(path: String): ByteBuffer? =
        try {
            manager.openFd(name(path)).use { file ->
                FileInputStream(file.fileDescriptor).use {
                    it.channel.map(FileChannel.MapMode.READ_ONLY, file.startOffset, file.declaredLength)
                }
            }
        } catch (compressed: FileNotFoundException) {
            null
        }
}

private class Folder(override val folder: File) : Place {
    override fun name(path: String): String = File(folder, path).path

    override fun open(path: String): InputStream = FileInputStream(File(folder, path))

    override fun map(path: String): ByteBuffer =
        FileInputStream(File(folder, path)).use { it.channel.map(FileChannel.MapMode.READ_ONLY, 0, it.channel.size()) }

    override fun list(): Map<String, String> {
        val found = FOLDERS.flatMap { name -> File(folder, name).walk().filter { it.isFile } }
        return found.associate { it.relativeTo(folder).invariantSeparatorsPath to "${it.length()} ${it.lastModified()}" }
    }
}

private class Given(private val read: (String) -> InputStream) : Place {
    override val isOpen = false

    override fun name(path: String): String = "$path from the app's function"

    override fun open(path: String): InputStream =
        try {
            read(path)
        } catch (error: GeneralSecurityException) {
            throw IOException("it cannot be decrypted: ${error.message}", error)
        }
}

/** A file as the manifest lists it. */
internal class ListedFile(val path: String, val digest: String, val size: Long, val role: String) {
    /** Whether this code reads it. */
    val isRead: Boolean get() = role == "model" || role == "golden" || role == "file"
}

/**
 * The bundle's files.
 *
 * @param cache the folder for compiled models: the system empties it when the app or the system is updated.
 */
internal class BundleFiles(private val place: Place, val cache: File) {
    /** The folder with the files, where they are files of their own. */
    val folder: File? get() = place.folder

    /** Returns a path as messages name it. */
    fun name(path: String): String = place.name(path)

    /** Returns a file's bytes. */
    fun readBytes(path: String): ByteArray = reading(path) { place.open(path).use { it.readBytes() } }

    /** Returns a file's text. */
    fun readText(path: String): String = String(readBytes(path), Charsets.UTF_8)

    /** Returns a file's bytes outside the heap: mapped, or a copy where the file cannot be mapped. */
    fun mapFile(file: ListedFile): ByteBuffer = reading(file.path) { place.map(file.path) ?: copyOutside(file) }

    private fun copyOutside(file: ListedFile): ByteBuffer {
        val bytes = ByteBuffer.allocateDirect(file.size.toInt())
        val rest = bytes.duplicate()
        val read = readChunks(file.path) { chunk, count -> if (count <= rest.remaining()) rest.put(chunk, 0, count) }
        checkSize(file, read)
        return bytes
    }

    /**
     * Copies files into [folder], except those that are already there, and returns the folder.
     *
     * A file is either complete there or missing.
     *
     * @throws ModelException if the place's files must not be copied.
     */
    fun copyFiles(paths: List<String>, folder: File): File {
        if (!place.isOpen) {
            val all = paths.joinToString()
            throw ModelException("$all: the model's weights are files of their own, which a function cannot give")
        }
        for (path in paths.filterNot { File(folder, it).exists() }) {
            val file = File(folder, path)
            reading(path) {
                file.parentFile?.mkdirs()
                val part = File.createTempFile("copy", ".part", file.parentFile)
                try {
                    place.open(path).use { from -> part.outputStream().use { from.copyTo(it) } }
                    if (!part.renameTo(file)) throw IOException("$part cannot be renamed")
                } finally {
                    part.delete()
                }
            }
        }
        return folder
    }

    /**
     * Checks that the files are those that the manifest lists: none is missing, truncated, changed, or there in addition.
     *
     * @throws ModelException with the first that is.
     */
    fun verify(listed: List<ListedFile>) {
        for (file in listed.filter { it.isRead }) {
            val digest = MessageDigest.getInstance("SHA-256")
            val size = reading(file.path) { readChunks(file.path) { chunk, count -> digest.update(chunk, 0, count) } }
            checkSize(file, size)
            if (formatHex(digest.digest()) != file.digest) {
                damaged("${name(file.path)} is not the file that manifest.json lists: it was changed")
            }
        }
        val more = place.list().keys - listed.map { it.path }.toSet()
        if (more.isNotEmpty()) damaged("manifest.json does not list ${name(more.min())}")
    }

    /** Returns what changes when files do, without reading them; where only reading tells, it tells places apart. */
    fun stamp(): String =
        place.list().ifEmpty { mapOf(name("") to "") }.toSortedMap().entries.joinToString("\n") { "${it.key} ${it.value}" }

    private fun checkSize(file: ListedFile, found: Long) {
        if (found != file.size) damaged("${name(file.path)} has $found bytes, ${file.size} are listed in manifest.json")
    }

    private fun damaged(why: String): Nothing = throw ModelException("the bundle is damaged: $why")

    /** Reads a file in parts and returns its size. */
    private fun readChunks(path: String, take: (ByteArray, Int) -> Unit): Long {
        val chunk = ByteArray(BUFFER)
        var size = 0L
        place.open(path).use { stream ->
            while (true) {
                val count = stream.read(chunk)
                if (count < 0) return size
                take(chunk, count)
                size += count
            }
        }
    }

    private fun <T> reading(path: String, read: () -> T): T =
        try {
            read()
        } catch (error: IOException) {
            throw ModelException("the bundle is not whole: ${name(path)}: ${error.message}", error)
        }
}

/** Returns the SHA-256 of bytes as hexadecimal digits. */
internal fun computeDigest(bytes: ByteArray): String = formatHex(MessageDigest.getInstance("SHA-256").digest(bytes))

/** Returns the SHA-256 of a text as hexadecimal digits. */
internal fun computeDigest(text: String): String = computeDigest(text.toByteArray())

private fun formatHex(bytes: ByteArray): String = bytes.joinToString("") { "%02x".format(it) }
