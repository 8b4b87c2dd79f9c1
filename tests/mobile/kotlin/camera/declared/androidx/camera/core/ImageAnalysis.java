package androidx.camera.core;

public final class ImageAnalysis {
    public static final int STRATEGY_KEEP_ONLY_LATEST = 0;

    public interface Analyzer {
        void analyze(ImageProxy image);
    }
}
