import android.os.Looper
import android.system.ErrnoException
import android.system.Os
import java.io.File
import java.io.IOException
import kotlin.concurrent.thread

/**
 * Checks that this is not the main thread, which draws the app: the app would freeze.
 *
 * @throws IllegalStateException if this is the main thread.
 */
internal fun requireBackground(what: String) {
    check(!isMain()) { "$what blocks, and this is the main thread: call it on another one, or call openAsync" }
}

/** Does what may take long: on another thread if this is the main one, else at once. */
internal fun awayFromMain(work: () -> Unit) {
    if (isMain()) thread(block = work) else work()
}

private fun isMain(): Boolean = Looper.myLooper() != null && Looper.myLooper() == Looper.getMainLooper()

/**
 * Sets an environment variable of this process. onnxruntime reads its variables when its first class loads.
 *
 * @param overwrite whether it replaces a value that another part of the app has set.
 */
internal fun setVariable(name: String, value: String, overwrite: Boolean) {
    try {
        Os.setenv(name, value, overwrite)
    } catch (error: ErrnoException) {
        throw ModelException("the environment variable $name cannot be set: ${error.message}", error, Reason.RUNTIME)
    }
}

/** Returns this CPU's flags, by Linux's names. */
internal fun readCpuFlags(): Set<String> {
    val lines =
        try {
            File("/proc/cpuinfo").readLines()
        } catch (unreadable: IOException) {
            emptyList()
        }
    val found = lines.map { it.split(":", limit = 2) }.filter { it[0].trim() in listOf("flags", "Features") }
    return found.flatMap { it.last().trim().split(" ") }.toSet()
}

/** Returns whether this is an x86 CPU (an emulator's, for example) whose default int8 kernels saturate. */
internal fun saturates(): Boolean {
    val x86 = System.getProperty("os.arch").orEmpty() in listOf("x86_64", "amd64", "i686")
    return x86 && readCpuFlags().none { it == "avx512_vnni" || it == "avx_vnni" }
}
