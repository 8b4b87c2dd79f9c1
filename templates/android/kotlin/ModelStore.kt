import java.io.File
import java.io.FileOutputStream
import java.io.IOException
import java.util.UUID

/**
 * A folder of the app's own for versions of the model that come later. One version is the current one.
 *
 * ```
 * val store = ModelStore(File(context.filesDir, "model"))
 * Model.install(context, store, download)
 * Model.open(context, source = store.current ?: ModelSource.ASSETS)
 * ```
 *
 * @param folder the app changes nothing in it; it need not exist yet.
 * @param signer whose signature every version must have, as [ModelSource.signedBy] takes it; null for none.
 */
class ModelStore @JvmOverloads constructor(private val folder: File, private val signer: String? = null) {
    private val versions = File(folder, "versions")
    private val pointer = File(folder, "current")

    /**
     * The current version; null before the first one is installed.
     *
     * @throws ModelException if the file that names it cannot be read.
     */
    val current: ModelSource?
        get() =
            try {
                if (pointer.exists()) from(File(versions, pointer.readText())) else null
            } catch (error: IOException) {
                throw ModelException("the store is damaged: $pointer: ${error.message}", error)
            }

    /**
     * Makes a folder the current version, and deletes the other ones.
     *
     * Until the new one is current, the one before is, whatever ends the app meanwhile.
     *
     * @param prove throws if the folder must not become current.
     */
    internal fun install(download: File, prove: (ModelSource) -> Unit) {
        synchronized(LOCK) {
            prove(from(download))
            val next = "${UUID.randomUUID()}"
            val version = File(versions, next)
            try {
                download.walk().filter { it.isFile }.forEach(::sync)
                versions.mkdirs()
                if (!download.renameTo(version)) {
                    throw IOException("it cannot be moved to $versions, which must be on the same file system")
                }
                point(next)
            } catch (error: IOException) {
                version.renameTo(download)
                throw ModelException("$download cannot be installed: ${error.message}", error)
            }
            versions.listFiles().orEmpty().filter { it.name != next }.forEach { it.deleteRecursively() }
        }
    }

    private fun from(version: File): ModelSource =
        ModelSource.folder(version).let { if (signer == null) it else it.signedBy(signer) }

    private fun point(version: String) {
        val part = File(folder, "current.part")
        part.writeText(version)
        sync(part)
        // Renaming replaces the file at once. Source: rename(2).
        if (!part.renameTo(pointer)) throw IOException("$part cannot be renamed")
    }

    private fun sync(file: File) = FileOutputStream(file, true).use { it.fd.sync() }

    private companion object {
        val LOCK = Any()
    }
}
