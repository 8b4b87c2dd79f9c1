package edgepack.measure;

import android.app.Activity;
import android.app.Instrumentation;
import android.net.Uri;
import android.os.Bundle;

/**
 * Runs the measuring program once, in an app's process, and ends.
 *
 * <p>Arguments of {@code am instrument -e}: {@code folder}, the program's working folder, and {@code
 * arguments}, its words, percent-encoded and joined by commas, in which {@code {files}} stands for
 * the app's folder for files, {@code {libraries}} for that of its libraries. Result: {@code exit}, the program's exit code. Not tried on a phone.
 */
public final class MeasureInstrumentation extends Instrumentation {
  private Bundle given;

  /** Runs edgepack_measure in a folder and returns its exit code. */
  private static native int measure(String[] arguments, String folder);

  @Override
  public void onCreate(Bundle arguments) {
    super.onCreate(arguments);
    given = arguments;
    start();
  }

  @Override
  public void onStart() {
    // This one loads onnxruntime, after it has switched telemetry off.
    System.loadLibrary("edgepack_measure");
    String files = getTargetContext().getFilesDir().getPath();
    String libraries = getTargetContext().getApplicationInfo().nativeLibraryDir;
    String[] words = given.getString("arguments", "").split(",");
    for (int index = 0; index < words.length; index++) {
      words[index] =
          Uri.decode(words[index]).replace("{files}", files).replace("{libraries}", libraries);
    }
    Bundle result = new Bundle();
    result.putInt("exit", measure(words, given.getString("folder", "/")));
    finish(Activity.RESULT_OK, result);
  }
}
