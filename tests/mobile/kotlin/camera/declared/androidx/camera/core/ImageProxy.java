package androidx.camera.core;

import android.media.Image;

public interface ImageProxy extends AutoCloseable {
    @Override
    void close();

    ImageInfo getImageInfo();

    @ExperimentalGetImage
    Image getImage();
}
