"""Run a model whose inputs and outputs stay in the memory of the device that computes.

::

    bound = load().bind({"images": array})   # copies the inputs there
    bound.run()                              # computes there, and waits for it
    outputs = bound.read()                   # copies the outputs back
    bound.write({"images": other})           # other inputs, of the same shapes

A call of the model copies its inputs to a GPU and its outputs back each time. Bound, it copies when
it is told to: never for what another program on the GPU wrote there or will read, and apart from
the computing for who measures.

Sources: onnxruntime.ai/docs/performance/tune-performance/iobinding.html; CUDA-ExecutionProvider and
TensorRT-ExecutionProvider in onnxruntime.ai/docs/execution-providers (CUDA graphs). Tried with the
memory of processors; no GPU has run it yet.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Tuple

import numpy as np

HOST = "cpu"
MEMORIES = {
    "CUDAExecutionProvider": "cuda",
    "TensorrtExecutionProvider": "cuda",
}
"""By provider that computes in another memory than the host's, onnxruntime's name of that."""
GRAPHS = {
    "CUDAExecutionProvider": {"enable_cuda_graph": "1"},
    "TensorrtExecutionProvider": {"trt_cuda_graph_enable": "True"},
}
"""By provider, its options that record what a run starts on the GPU once, and start that as one.
A recorded run reads and writes the same addresses each time, so only what is bound may use it."""


def find_memory(entry: Mapping[str, Any]) -> str:
    """Return onnxruntime's name of the memory that a manifest's variant computes in."""
    return MEMORIES.get(entry["providers"][0]["name"], HOST)


def read_value(value: Any) -> np.ndarray:
    """Return an output as an array of this process; values on a device are copied."""
    if isinstance(value, np.ndarray):
        return value
    array: np.ndarray = value.numpy()
    # Of the host's memory it is a view (onnxruntime 1.31.1, observed).
    return array if array.flags.owndata else array.copy()


def find_device_id(entry: Mapping[str, Any]) -> int:
    """Return which of several GPUs a variant computes on."""
    return int(entry["providers"][0].get("options", {}).get("device_id", 0))


def add_graph(entry: Mapping[str, Any]) -> Dict[str, Any]:
    """Return a variant whose first provider records its runs.

    Raises:
        ValueError: It cannot.
    """
    first, *others = entry["providers"]
    if first["name"] not in GRAPHS:
        raise ValueError(f"{first['name']} records no runs")
    options = {**first.get("options", {}), **GRAPHS[first["name"]]}
    return {**entry, "providers": [{**first, "options": options}, *others]}


class Bound:
    """A session with inputs and outputs in the memory of its device, of fixed shapes.

    A model whose outputs have other shapes for other values, such as one that suppresses boxes, is
    no such: onnxruntime refuses the run that gives another one.

    Attributes:
        memory: Onnxruntime's name of that memory: ``cuda``, or ``cpu``.
    """

    def __init__(
        self,
        session: Any,
        memory: Tuple[str, int],
        feed: Mapping[str, np.ndarray],
        outputs: Mapping[str, np.ndarray],
    ) -> None:
        """Allocate the inputs and outputs, and copy the inputs.

        Args:
            session: An onnxruntime session.
            memory: Onnxruntime's name of where it computes, and which of several devices it is.
            feed: All its inputs.
            outputs: Of inputs of these shapes; only their shapes and dtypes matter.
        """
        self.memory, self._device_id = memory
        self._session = session
        self._binding = session.io_binding()
        self._specs = {name: (array.shape, array.dtype) for name, array in feed.items()}
        self._inputs = {name: self._allocate(array) for name, array in feed.items()}
        self._outputs = {name: self._allocate(array) for name, array in outputs.items()}
        self.write(feed)
        for name, value in self._inputs.items():
            self._binding.bind_ortvalue_input(name, value)
        for name, value in self._outputs.items():
            self._binding.bind_ortvalue_output(name, value)

    def _allocate(self, like: np.ndarray) -> Any:
        import onnxruntime as ort

        allocate = ort.OrtValue.ortvalue_from_shape_and_type
        return allocate(list(like.shape), like.dtype.type, self.memory, self._device_id)

    @property
    def addresses(self) -> Dict[str, int]:
        """Where each input and output lies: for programs that write and read there themselves."""
        values = {**self._inputs, **self._outputs}
        return {name: value.data_ptr() for name, value in values.items()}

    def write(self, feed: Mapping[str, np.ndarray]) -> None:
        """Copy inputs to the device; those that are left out stay.

        Raises:
            ValueError: One is none of the model's, or has another shape or dtype.
        """
        arrays = {name: np.asarray(given) for name, given in feed.items()}
        for name, array in arrays.items():
            if name not in self._specs:
                raise ValueError(f"there is no input {name!r}; there are {', '.join(self._specs)}")
            shape, dtype = self._specs[name]
            if (array.shape, array.dtype) != (shape, dtype):
                raise ValueError(
                    f"input {name!r} is {array.dtype} {list(array.shape)}; {dtype} {list(shape)}"
                    " was bound: bind the model again"
                )
        for name, array in arrays.items():
            self._inputs[name].update_inplace(np.require(array, requirements="C"))

    def run(self) -> None:
        """Compute, and wait until the outputs are there."""
        self._session.run_with_iobinding(self._binding)

    def read(self) -> Dict[str, np.ndarray]:
        """Return copies of the outputs."""
        found = {name: value.numpy() for name, value in self._outputs.items()}
        # Of the host's memory it is a view (1.31.1, observed).
        return {
            name: array if array.flags.owndata else array.copy() for name, array in found.items()
        }
