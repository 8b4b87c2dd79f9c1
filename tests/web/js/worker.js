// Opens a bundle in a worker, where there are no import maps: onnxruntime is passed.

import * as ort from "/node_modules/onnxruntime-web/dist/ort.wasm.bundle.min.mjs";

self.addEventListener("message", async ({data: {bundle, type, picture}}) => {
  const {[type]: Subject} = await import(`/dist/${bundle}/index.js`);
  try {
    const model = await Subject.open({ort});
    const {answers} = await model.predict(picture);
    self.postMessage({variant: model.variant, notes: model.notes, answers});
    await model.close();
  } catch (error) {
    self.postMessage({error: `${error.reason}: ${error.message}`});
  }
});
