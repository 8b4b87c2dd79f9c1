// Writes what the runtime makes of every case that vectors.py and refusals.py of tests/mobile wrote, in folders of the
// same names.
//
//     node vectors.js PACKAGE CASES RESULTS

import {existsSync, mkdirSync, readFileSync, readdirSync, writeFileSync} from "node:fs";
import {join, resolve} from "node:path";
import {pathToFileURL} from "node:url";

const [bundle, cases, results] = process.argv.slice(2);

/** @param {string} name */
async function load(name) {
  return import(pathToFileURL(resolve(bundle, "runtime", name)).href);
}

const {makeAnswer, readLabels} = await load("answers.js");
const {makeFramePixels, makePlainPixels} = await load("frames.js");
const {copyPixels, findPlacement, makeImageTensor, requireScaled} = await load("images.js");
const {readPriors} = await load("boxes.js");
const {decode} = await load("tensors.js");
const {WordPiece} = await load("wordpiece.js");

/** @param {string} file */
const read = (file) => JSON.parse(readFileSync(file, "utf8"));

/**
 * Calls `make` for each case of a kind, with its folder, what it says, and a folder to write to.
 *
 * @param {string} kind
 * @param {(folder: string, facts: any, into: string) => void} make
 */
function forEachCase(kind, make) {
  const all = join(cases, kind);
  for (const name of existsSync(all) ? readdirSync(all) : []) {
    const folder = join(all, name);
    const into = join(results, kind, name);
    mkdirSync(into, {recursive: true});
    make(folder, existsSync(join(folder, "case.json")) ? read(join(folder, "case.json")) : null, into);
  }
}

/** @param {string} folder @param {any} entry */
function readTensor(folder, {dtype, shape, path}) {
  return decode(dtype, shape, readFileSync(join(folder, path)));
}

/** What is the default is left out. @param {string} folder @param {any} facts */
function makePixels(folder, {format, width, height, planes, rotation, matrix, range}) {
  return makeFramePixels({
    format, width, height,
    planes: planes.map((/** @type {any} */ plane) => ({
      data: readFileSync(join(folder, plane.path)),
      rowStride: plane.row_stride,
      pixelStride: plane.pixel_stride,
      offset: plane.offset,
    })),
    rotation: rotation || undefined,
    matrix: matrix === "bt601" ? undefined : matrix,
    range: range === "full" ? undefined : range,
  });
}

/** @param {string} folder @param {any} facts */
function answer(folder, {description, labels, outputs, image, mask, options, priors}) {
  const place = image && findPlacement(image.width, image.height, image.description.resize);
  const [output, ...beside] = outputs.map((/** @type {any} */ entry) => readTensor(folder, entry));
  const several = {beside, priors: typeof priors === "string" ? readPriors(priors) : undefined};
  const given = {
    description, labels, place, several, mask: mask ? readTensor(folder, mask) : undefined, options: options ?? {},
  };
  return asJson(makeAnswer(output, given));
}

/** @param {any} found */
function asJson(found) {
  if (Array.isArray(found)) return found.map((each) => (each instanceof Float32Array ? [...each] : each));
  if (typeof found.text === "string") return found;
  if (!found.classes) return Array.from(found.data);
  const runs = [];
  for (const index of found.classes) {
    if (runs.at(-1)?.[0] === index) runs.at(-1)[1]++;
    else runs.push([index, 1]);
  }
  return {width: found.width, height: found.height, runs};
}

/** @param {string} folder @param {any} facts */
function refuse(folder, facts) {
  try {
    const made = facts.planes ? makePixels(folder, facts) : answer(folder, facts);
    return `no refusal, but ${JSON.stringify(made)}`;
  } catch (error) {
    return error.reason === "input" ? error.message : `${error.stack}`;
  }
}

/** Models that scale pictures themselves get none that would take gigabytes. */
function requireRefusal() {
  const resize = {short_side: 256, crop: 224};
  requireScaled(findPlacement(4096, 1, resize));
  let said = "nothing";
  try {
    requireScaled(findPlacement(1, 4097, resize));
  } catch (error) {
    said = error.message;
  }
  const wanted = "the picture of 1 x 4097 pixels would become 256 x 1048832 in the model before it is cut";
  if (said !== `${wanted}: cut its ends off first`) throw new Error(said);
}

function requireLabels() {
  const found = JSON.stringify(readLabels("\uFEFFcat\r\n\r\ndog"));
  if (found !== '["cat","","dog"]') throw new Error(`the labels are ${found}`);
}

requireRefusal();
requireLabels();
forEachCase("images", (folder, {width, height, description}, into) => {
  const data = readFileSync(join(folder, "pixels.bin"));
  writeFileSync(join(into, "tensor.bin"), makeImageTensor(makePlainPixels({data, width, height}), description).tensor.data);
});
forEachCase("frames", (folder, facts, into) => {
  const pixels = makePixels(folder, facts);
  writeFileSync(join(into, "rgb.bin"), copyPixels(pixels).data);
  writeFileSync(join(into, "tensor.bin"), makeImageTensor(pixels, facts.description).tensor.data);
  writeFileSync(join(into, "prescaled.bin"), makeImageTensor(pixels, facts.description, true).tensor.data);
});
forEachCase("answers", (folder, facts, into) => {
  writeFileSync(join(into, "found.json"), JSON.stringify(answer(folder, facts)));
});
forEachCase("refused", (folder, facts, into) => writeFileSync(join(into, "found.txt"), refuse(folder, facts)));
forEachCase("wordpiece", (folder, {length, pad, texts}, into) => {
  const tokenizer = new WordPiece(read(join(folder, "tokenizer.json")));
  const found = texts.map((/** @type {any} */ {text}) => {
    const {inputIds, attentionMask, tokenTypeIds} = tokenizer.encode(text, length, pad);
    return {input_ids: inputIds, attention_mask: attentionMask, token_type_ids: tokenTypeIds};
  });
  writeFileSync(join(into, "found.json"), JSON.stringify(found));
});
