package androidx.camera.view;

import androidx.camera.core.CameraSelector;
import androidx.camera.core.ImageAnalysis;
import com.google.common.util.concurrent.ListenableFuture;
import java.util.concurrent.Executor;

public abstract class CameraController {
    public void setImageAnalysisBackpressureStrategy(int strategy) {}

    public int getImageAnalysisBackpressureStrategy() {
        return 0;
    }

    public void setImageAnalysisAnalyzer(Executor executor, ImageAnalysis.Analyzer analyzer) {}

    public void clearImageAnalysisAnalyzer() {}

    public ListenableFuture<Void> getInitializationFuture() {
        return null;
    }

    public boolean hasCamera(CameraSelector selector) {
        return false;
    }
}
