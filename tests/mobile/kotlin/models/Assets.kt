package android.content.res

import java.io.ByteArrayInputStream
import java.io.Closeable
import java.io.File
import java.io.FileDescriptor
import java.io.FileInputStream
import java.io.FileNotFoundException
import java.io.InputStream
import java.io.RandomAccessFile

/**
 * Stands in for Android's class of the same name, which is native: assets that lie one behind the other in a file, as
 * in an app's package.
 *
 * @param apk the file.
 * @param index a line for each asset: offset, length, 1 if it lies there as it is and 0 if it were compressed, path.
 */
class AssetManager(private val apk: File, index: File) {
    private class Entry(val offset: Long, val length: Long, val isStored: Boolean)

    private val entries =
        index.readLines().associate { line ->
            val (offset, length, stored, path) = line.split(" ", limit = 4)
            path to Entry(offset.toLong(), length.toLong(), stored == "1")
        }

    private fun entry(path: String): Entry = entries[path] ?: throw FileNotFoundException(path)

    fun open(path: String): InputStream {
        val entry = entry(path)
        val bytes = ByteArray(entry.length.toInt())
        RandomAccessFile(apk, "r").use {
            it.seek(entry.offset)
            it.readFully(bytes)
        }
        return ByteArrayInputStream(bytes)
    }

    fun openFd(path: String): AssetFileDescriptor {
        val entry = entry(path)
        if (!entry.isStored) throw FileNotFoundException("$path: it is probably compressed")
        return AssetFileDescriptor(FileInputStream(apk), entry.offset, entry.length)
    }
}

/** Stands in for Android's class of the same name, which is native. */
class AssetFileDescriptor(
    private val file: FileInputStream,
    val startOffset: Long,
    val declaredLength: Long,
) : Closeable {
    val fileDescriptor: FileDescriptor get() = file.fd

    override fun close() = file.close()
}
