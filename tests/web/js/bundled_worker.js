import {Detector} from "edgepack-detector";

self.addEventListener("message", async ({data: {picture, baseUrl}}) => {
  try {
    const model = await Detector.open(baseUrl ? {source: {baseUrl}} : {});
    const {answers} = await model.predict(picture);
    self.postMessage(answers.objects);
  } catch (error) {
    self.postMessage(`${error.reason}: ${error.message}`);
  }
});
