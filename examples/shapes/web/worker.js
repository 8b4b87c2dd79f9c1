import {ShapeDetector} from "./node_modules/edgepack-shapes/index.js";

const opening = open();

async function open() {
  // Workers have no import maps: onnxruntime is passed. Its build without WebGPU is half the download.
  const build = navigator.gpu ? "webgpu" : "wasm";
  const ort = await import(`./node_modules/onnxruntime-web/dist/ort.${build}.bundle.min.mjs`);
  return ShapeDetector.open({ort});
}

self.addEventListener("message", async ({data: {id, picture, options}}) => {
  try {
    const model = await opening;
    if (picture) {
      const {answers} = await model.predict(picture, options);
      self.postMessage({id, result: answers.boxes});
    } else {
      self.postMessage({id, result: {variant: model.variant, notes: model.notes}});
    }
  } catch (error) {
    self.postMessage({id, error: error.message});
  } finally {
    picture?.close?.(); // A camera has few frames, and waits for them.
  }
});
