// Runs three models that share their code in one app, and the same three that each have it, and prints what they give.
//
//     node shared.js DETECTOR TEXT PAIR
//
// These are the folders of bundles that have the code. This file lies in the app.

import {resolve} from "node:path";
import {pathToFileURL} from "node:url";
import * as detector from "edgepack-detector";
import * as pair from "edgepack-pair";
import * as library from "edgepack-runtime";
import * as text from "edgepack-text";

const SHARED = [detector, text, pair];
const VENDORED = await Promise.all(
  process.argv.slice(2).map(async (folder) => import(pathToFileURL(resolve(folder, "index.js")).href)),
);

/** @param {number} width @param {number} height */
function makePicture(width, height) {
  const data = Uint8Array.from({length: 3 * width * height}, (_, place) => (place * place * 7 + place) % 256);
  return {data, width, height};
}

/** @param {any[]} modules */
async function answer(modules) {
  const [{Detector}, {Text}, {PairModel}] = modules;
  const models = await Promise.all([Detector, Text, PairModel].map(async (Subject) => Subject.open()));
  const given = [makePicture(40, 30), "Was it a car?", {pixels: makePicture(9, 20), referenceImage: makePicture(31, 8)}];
  const found = [];
  for (const [n, model] of models.entries()) {
    const {answers} = await model.predict(given[n]);
    found.push([model.variant, (await model.selfTest()).passed, answers]);
  }
  // A tensor that one module has made is one to the others' models.
  const tensor = new modules[1].Tensor(new Float32Array(3072), [1, 3, 32, 32]);
  const isTaken = await models[0].run({images: tensor}).then(() => true, (/** @type {any} */ {message}) => message);
  const wrong = await models[2].run({}).catch((/** @type {any} */ error) => error);
  await Promise.all(models.map(async (model) => model.close()));
  return {found, isTaken, isError: modules.map(({ModelError}) => wrong instanceof ModelError)};
}

/** @param {any} Class @param {any[]} modules */
const countEqual = (Class, modules) => modules.filter((module) => module[Class.name] === Class).length;

process.stdout.write(`${JSON.stringify({
  shared: await answer(SHARED),
  vendored: await answer(VENDORED),
  same: [library.ModelError, library.Tensor].map((Class) => countEqual(Class, SHARED)),
})}\n`);
