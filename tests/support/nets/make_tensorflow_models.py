"""Writes models of TensorFlow, Keras and TensorFlow Lite into a folder; runs where these are."""

from __future__ import annotations

import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from keras import layers


def make_pictures() -> keras.Model:
    """A small classifier of pictures, with what mobile networks are made of."""
    return keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            layers.Conv2D(8, 3, activation="relu6", padding="same"),
            layers.DepthwiseConv2D(3, strides=2),
            layers.BatchNormalization(),
            layers.Activation("hard_swish"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(5, activation="softmax"),
        ]
    )


def make_two_of_each() -> keras.Model:
    """Two inputs, two outputs, by name."""
    inputs = {"left": keras.Input((8,), name="left"), "right": keras.Input((4,), name="right")}
    joined = layers.Concatenate()([inputs["left"], inputs["right"]])
    return keras.Model(
        inputs, {"scores": layers.Dense(3)(joined), "gate": layers.Dense(1, "sigmoid")(joined)}
    )


def make_sequence() -> keras.Model:
    """A recurrent network over sequences of any length."""
    taken = keras.Input((None, 6))
    return keras.Model(taken, layers.Dense(2)(layers.GRU(7, return_sequences=True)(taken)))


def make_attention() -> keras.Model:
    """A block of a transformer over token ids."""
    ids = keras.Input((12,), dtype="int32", name="ids")
    x = layers.Embedding(50, 16)(ids)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 8)(x, x))
    x = x + layers.Dense(16)(layers.Dense(32, activation="gelu")(x))
    return keras.Model(ids, layers.GlobalAveragePooling1D()(x))


class Doubled(layers.Layer):
    """A layer whose code is not in the file."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Return twice the input."""
        return 2.0 * x


def write_tflite(model: keras.Model, path: Path, kind: str) -> None:
    """Convert a model to TensorFlow Lite: float, with float16 weights, or in integers."""
    rng = np.random.default_rng(0)
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    if kind != "float":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if kind == "half":
        converter.target_spec.supported_types = [tf.float16]
    if kind == "int8":
        shape = (1, *model.input_shape[1:])
        converter.representative_dataset = lambda: (
            [rng.normal(size=shape).astype(np.float32)] for _ in range(50)
        )
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
        converter.inference_input_type = converter.inference_output_type = tf.int8
    path.write_bytes(converter.convert())


def write_saved_models(folder: Path) -> None:
    """Write a module with two signatures, one that reads a file, and one without signatures."""

    class Module(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32, name="x")])
        def double(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"doubled": 2.0 * x, "sum": tf.reduce_sum(x, axis=1)}

    class Reading(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None, 4], tf.float32, name="x")])
        def read(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
            return {"y": x + tf.cast(tf.strings.length(tf.io.read_file("/etc/hosts")), tf.float32)}

    module, reading = Module(), Reading()
    tf.saved_model.save(module, str(folder / "plain"), signatures={"double": module.double})
    both = {"double": module.double, "again": module.double}
    tf.saved_model.save(module, str(folder / "two_signatures"), signatures=both)
    tf.saved_model.save(reading, str(folder / "reading"), signatures={"read": reading.read})


def main(folder: Path) -> None:
    """Write all of them."""
    keras.utils.set_random_seed(7)
    pictures = make_pictures()
    pictures.save(folder / "pictures.keras")
    pictures.save(folder / "pictures.h5")
    pictures.save_weights(folder / "only.weights.h5")
    pictures.export(folder / "pictures_saved", verbose=False)
    for kind in ("float", "half", "int8"):
        write_tflite(pictures, folder / f"pictures_{kind}.tflite", kind)
    make_two_of_each().save(folder / "two_of_each.keras")
    make_sequence().save(folder / "sequence.keras")
    make_attention().save(folder / "attention.keras")
    taken = keras.Input((4,))
    keras.Model(taken, layers.Lambda(lambda x: x + 1.0, name="add_one")(taken)).save(
        folder / "lambda.keras"
    )
    keras.Model(taken, Doubled(name="doubled")(taken)).save(folder / "own_layer.keras")
    write_saved_models(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
