package androidx.camera.view;

import android.content.Context;
import android.widget.FrameLayout;

public final class PreviewView extends FrameLayout {
    public PreviewView(Context context) {
        super(context);
    }

    public enum ScaleType {
        FILL_START,
        FILL_CENTER,
        FILL_END,
        FIT_START,
        FIT_CENTER,
        FIT_END
    }

    public void setScaleType(ScaleType type) {}

    public ScaleType getScaleType() {
        return null;
    }

    public void setController(CameraController controller) {}

    public CameraController getController() {
        return null;
    }
}
