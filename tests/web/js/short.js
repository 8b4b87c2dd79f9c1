// What is said where memory is short before anything runs, and of arrays that are no matter of memory, as JSON.
//
//     node short.js PIXELS DYNAMIC_BATCH
//
// These are the folders of bundles. This file lies where Node finds the packages that it runs with.

import {readFile} from "node:fs/promises";
import {join, resolve} from "node:path";
import {pathToFileURL} from "node:url";
import * as ort from "onnxruntime-web";

const folders = process.argv.slice(2);
const modules = folders.map(async (folder) => import(pathToFileURL(resolve(folder, "index.js")).href));
const [{Pixels}, {DynamicBatch, Tensor}] = await Promise.all(modules);

/** @param {() => Promise<unknown>} call */
async function tell(call) {
  try {
    return `${await call()}`;
  } catch (error) {
    return `${error.reason}: ${error.message.replaceAll("\n", " ")}`;
  }
}

/**
 * Opens the model with other models' files.
 *
 * @param {() => Uint8Array} makeModel
 */
const open = async (makeModel) => {
  const source = async (/** @type {string} */ path) => (path.startsWith("models/") ? makeModel() : readFile(join(folders[0], path)));
  return Pixels.open({ort, source});
};

const model = await DynamicBatch.open({ort});
const isShort = () => Symbol.for("edgepack.short") in ort.env;
// As in a page without HTTPS: the digest of 4 GB would need as much.
const {crypto} = globalThis;
Object.defineProperty(globalThis, "crypto", {value: undefined, configurable: true});
const fault = await tell(() => open(() => {
  new Uint8Array(1).set([1], 9);
  return new Uint8Array(0);
}));
const before = isShort();
const opening = await tell(() => open(() => new Uint8Array(2 ** 32 - 1)));
const after = isShort();
Object.defineProperty(globalThis, "crypto", {value: crypto, configurable: true});
// More bytes than WebAssembly has addresses, and than one array may have in Node 20.
const input = await tell(() => model.run({image: new Tensor(new Float32Array(192 * 6e6), [6e6, 3, 8, 8])}));
const {passed} = await model.selfTest();
await model.close();
process.stdout.write(`${JSON.stringify({fault, before, opening, after, input, passed})}\n`);
