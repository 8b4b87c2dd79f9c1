// Runs a bundle on what cases.json in a folder names, writes outputs there, and prints what it found as JSON.
//
//     node models.js PACKAGE FOLDER node|web
//
// This file lies where Node finds the packages that it runs with.

import {readFileSync, writeFileSync} from "node:fs";
import {join, resolve} from "node:path";
import {pathToFileURL} from "node:url";

const [bundle, folder, which] = process.argv.slice(2);

/** @param {string} path */
const load = async (path) => import(pathToFileURL(resolve(bundle, path)).href);

const wanted = JSON.parse(readFileSync(join(folder, "cases.json"), "utf8"));
const ort = which === "web" ? await import("onnxruntime-web") : undefined;
const {Tensor, [wanted.type]: Subject} = await load("index.js");
const {decode, narrow} = await load("runtime/tensors.js");

/** @param {string} path */
const read = (path) => readFileSync(join(folder, path));

/** @param {any} error */
const say = (error) => (error.reason ? `${error.reason}: ${error.message}` : `${error.stack}`);

/** @param {() => Promise<unknown>} call */
async function refuse(call) {
  try {
    return `no refusal, but ${await call()}`;
  } catch (error) {
    return say(error);
  }
}

/** @param {any[]} entries */
function makeInputs(entries) {
  return Object.fromEntries(entries.map(({name, dtype, shape, path}) => {
    const {data} = decode(dtype, shape, read(path));
    return [wanted.inputs[name], new Tensor(data, shape)];
  }));
}

/** @param {any} model @param {any} entry */
async function run(model, {id, inputs}) {
  try {
    const outputs = await model.run(makeInputs(inputs));
    for (const [n, {name, dtype}] of wanted.outputs.entries()) {
      const {data} = outputs[name];
      writeFileSync(join(folder, `${id}-${n}.bin`), dtype === "float16" ? narrow(data) : data);
    }
    return wanted.outputs.map((/** @type {any} */ {name}) => outputs[name].shape);
  } catch (error) {
    return error.reason === "input" ? error.message : say(error);
  }
}

/** @param {any} given */
const list = (given) => typeof given.text === "string" ? [given.text, given.score] : given.map((/** @type {any} */ each) => {
  if (each instanceof Float32Array) return [...each];
  const points = (each.keypoints ?? []).map((/** @type {any} */ {x, y, score}) => [x, y, score]);
  return each.box ? [each.index, each.label, each.score, each.box, points] : [each.index, each.label, each.score];
});

/** @param {any} outputs */
function listAnswers({answers = {}}) {
  const named = wanted.answered.map((/** @type {any} */ {key, name}) => [name, list(answers[key])]);
  return Object.fromEntries(named);
}

/** @param {any} picture @param {any} rest */
function makeWays({path, width, height}, rest) {
  const rgb = read(path);
  const rgba = new Uint8ClampedArray(4 * width * height).fill(255);
  for (let pixel = 0; pixel < width * height; pixel++) rgba.set(rgb.subarray(3 * pixel, 3 * pixel + 3), 4 * pixel);
  const upside = new Uint8Array(rgb.length);
  for (let pixel = 0; pixel < width * height; pixel++) {
    upside.set(rgb.subarray(3 * pixel, 3 * pixel + 3), 3 * (width * height - 1 - pixel));
  }
  const ways = [
    {data: rgb, width, height},
    {data: rgba, width, height},
    {format: "rgb", width, height, planes: [{data: upside}], rotation: 180},
  ];
  const named = ways.map((way) => ({...rest, ...Object.fromEntries(wanted.pictured.map((/** @type {string} */ key) => [key, way]))}));
  return wanted.needed === 1 ? [...ways, ...named] : named;
}

/** Opens the model for averages of large pictures, and returns whether its outputs are others. @param {any} whole */
async function prescale(whole) {
  const model = await Subject.open({ort, prescale: true});
  const data = Uint8Array.from({length: 3 * 320 * 240}, (_, place) => (place * place) % 251);
  const picture = {data, width: 320, height: 240};
  const given = Object.fromEntries(wanted.pictured.map((/** @type {string} */ key) => [key, picture]));
  const [one, other] = await Promise.all([whole, model].map(async (each) => each.run({...rest, ...given})));
  await model.close();
  return wanted.outputs.some((/** @type {any} */ {name}) => `${one[name].data}` !== `${other[name].data}`);
}

const model = await Subject.open({ort});
const {decibels, passed} = await model.selfTest();
/** @type {any} */
const found = {
  variant: model.variant,
  passedOver: model.passedOver.map((/** @type {any} */ {variant, reason}) => [variant, reason]),
  notes: model.notes,
  decibels, passed, cases: [], pictures: [], few: [], texts: [],
};
for (const entry of wanted.tensors) found.cases.push(await run(model, entry));
const golden = makeInputs(wanted.tensors[0].inputs);
const rest = Object.fromEntries(Object.entries(golden).filter(([key]) => wanted.plain.includes(key)));
for (const key of wanted.worded) rest[key] = wanted.caption;
for (const picture of wanted.pictures) {
  for (const [said, options] of [[found.pictures, undefined], [found.few, {top: 1, most: 1}]]) {
    const all = [];
    for (const way of makeWays(picture, rest)) all.push(listAnswers(await model.predict(way, options)));
    if (new Set(all.map((each) => JSON.stringify(each))).size > 1) throw new Error("the ways in differ");
    said.push(all[0]);
  }
}
for (const text of wanted.texts) {
  found.texts.push(listAnswers(await model.predict(wanted.needed === 1 ? text : {...rest, [wanted.worded[0]]: text})));
}
found.prescaled = await refuse(() => prescale(model));
// Calls that overlap run one after the other, and closing waits for them.
const several = Array.from({length: 20}, () => run(model, wanted.tensors[0]));
const closed = model.close();
found.several = new Set((await Promise.all(several)).map((each) => JSON.stringify(each))).size;
await closed;
await model.close();
found.closed = await refuse(() => model.run(golden));
found.unknown = await refuse(() => Subject.open({ort, variant: "no-such"}));
found.alone = [];
for (const variant of wanted.variants) {
  const one = await refuse(async () => {
    const opened = await Subject.open({ort, variant});
    await opened.close();
    return opened.variant;
  });
  found.alone.push(one);
}
process.stdout.write(`${JSON.stringify(found)}\n`);
