// An app that a bundler packs: two models that share their code, two that have their own, and one in a worker.

import {Detector} from "edgepack-detector";
import {ModelError} from "edgepack-runtime";
import {Text} from "edgepack-text";
import {Named} from "vendored-named";
import {PairModel} from "vendored-pair";

// Where a bundler copies no files, the address names their folder.
const folder = new URLSearchParams(location.search).get("folder");

/** @param {string} name */
const options = (name) => (folder ? {source: {baseUrl: `${folder}/${name}/`}} : {});

/** @param {string | undefined} baseUrl */
async function askWorker(baseUrl) {
  const worker = new Worker(new URL("./bundled_worker.js", import.meta.url), {type: "module"});
  const done = new Promise((resolve) => {
    worker.addEventListener("message", ({data}) => resolve(data));
    worker.addEventListener("error", ({message}) => resolve(message));
  });
  worker.postMessage({picture: new ImageData(40, 30), baseUrl});
  return done;
}

async function look() {
  const picture = new ImageData(40, 30);
  const detector = await Detector.open(options("edgepack-detector"));
  const text = await Text.open(options("edgepack-text"));
  const pair = await PairModel.open(options("vendored-pair"));
  const named = await Named.open(options("vendored-named"));
  const wrong = await detector.run({}).catch((/** @type {any} */ error) => error);
  return {
    variants: [detector, text, pair, named].map(({variant}) => variant),
    objects: (await detector.predict(picture)).answers.objects,
    named: (await named.predict(picture)).answers.objects,
    vectors: [
      ...(await text.predict("Was it a car?")).answers.hidden,
      ...(await pair.predict({pixels: picture, referenceImage: picture})).answers.difference,
    ].map((vector) => [...vector]),
    isError: wrong instanceof ModelError,
    worker: await askWorker(folder ? new URL(`${folder}/edgepack-detector/`, location.href).href : undefined),
  };
}

window.proof = {found: look().catch((error) => ({error: `${error.reason}: ${error.stack}`}))};
