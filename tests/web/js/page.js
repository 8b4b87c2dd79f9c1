// What the proofs call in a page: functions of names and numbers that return what JSON can hold.

import {ModelError} from "/dist/runtime/errors.js";
import {makeFramePixels} from "/dist/runtime/frames.js";
import {copyPixels} from "/dist/runtime/images.js";
import {makePixels} from "/dist/runtime/pictures.js";

/** @type {Map<string, any>} */
const models = new Map();

/** @param {string} bundle */
const load = async (bundle) => import(`/dist/${bundle}/index.js`);

/** @param {any} error */
const say = (error) => (error instanceof Error ? `${/** @type {any} */ (error).reason}: ${error.message}` : `${error}`);

/** @param {() => Promise<unknown>} call */
export async function refuse(call) {
  try {
    return `no refusal, but ${JSON.stringify(await call())}`;
  } catch (error) {
    return say(error);
  }
}

/** @param {string} bundle @param {string} type @param {any} [options] @param {number} [threads] @param {number} [timeout] */
export async function open(bundle, type, options = {}, threads = 0, timeout = 0) {
  const {[type]: Subject} = await load(bundle);
  const ort = await import("#onnxruntime");
  if (threads) ort.env.wasm.numThreads = threads;
  ort.env.wasm.initTimeout = timeout;
  const model = await Subject.open(options);
  models.set(bundle, model);
  return {
    variant: model.variant,
    passedOver: model.passedOver.map((/** @type {any} */ {variant, reason}) => [variant, reason]),
    notes: model.notes,
    threads: ort.env.wasm.numThreads ?? null,
    timeout: ort.env.wasm.initTimeout,
    isolated: crossOriginIsolated,
    test: await model.selfTest(),
  };
}

/** @param {Parameters<typeof open>} given */
export const openRefused = async (...given) => refuse(() => open(...given));

/** @param {string} bundle @param {any} [options] */
export async function predict(bundle, options = {}) {
  const picture = new ImageData(40, 30);
  const {answers} = await models.get(bundle).predict(picture, options);
  return answers;
}

/** @param {string} bundle @param {any} [options] */
export const predictRefused = async (bundle, options) => refuse(() => predict(bundle, options));

/** Ends the GPU's device, and returns what the next call says. @param {string} bundle */
export async function loseDevice(bundle) {
  const ort = await import("#onnxruntime-webgpu");
  const device = await ort.env.webgpu.device;
  device.destroy();
  await device.lost;
  return predictRefused(bundle);
}

/** @param {string} bundle @param {string} type */
export async function runInWorker(bundle, type) {
  const worker = new Worker("/worker.js", {type: "module"});
  const picture = new ImageData(40, 30);
  const done = new Promise((resolve, reject) => {
    worker.addEventListener("message", ({data}) => resolve(data));
    worker.addEventListener("error", ({message}) => reject(new Error(message)));
  });
  worker.postMessage({bundle, type, picture});
  const found = await done;
  worker.terminate();
  return found;
}

/** Changes what is kept of a bundle's files. @param {string} name */
export async function spoilCache(name) {
  const cache = await caches.open(`edgepack-${name}`);
  const keys = await cache.keys();
  for (const key of keys) await cache.put(key, new Response("other bytes"));
  return keys.length;
}

/** @param {number} width @param {number} height @param {number} size bytes of a pixel */
function makeNoise(width, height, size) {
  let state = width * 7919 + height;
  return Uint8Array.from({length: width * height * size}, () => {
    state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff;
    return state >> 16;
  });
}

/** @param {Uint8Array} rgba */
const makeOpaque = (rgba) => rgba.map((value, place) => (place % 4 === 3 ? 255 : value));

/** @param {any} one @param {any} other */
function countDifferent(one, other) {
  if (one.width !== other.width || one.height !== other.height) return -1;
  const [a, b] = [copyPixels(one).data, copyPixels(other).data];
  return a.reduce((/** @type {number} */ count, /** @type {number} */ value, /** @type {number} */ place) =>
    count + Number(value !== b[place]), 0);
}

/** Returns, for each kind of opaque picture, how many values are not those that it was made of. */
export async function comparePictures() {
  const [width, height] = [31, 22];
  const rgba = makeOpaque(makeNoise(width, height, 4));
  const data = new ImageData(new Uint8ClampedArray(rgba), width, height);
  const wanted = makeFramePixels({format: "rgba", width, height, planes: [{data: rgba}]});
  const canvas = document.createElement("canvas");
  const offscreen = new OffscreenCanvas(width, height);
  for (const each of [canvas, offscreen]) {
    [each.width, each.height] = [width, height];
    each.getContext("2d").putImageData(data, 0, 0);
  }
  const blob = await offscreen.convertToBlob({type: "image/png"});
  const image = new Image();
  image.src = URL.createObjectURL(blob);
  await image.decode();
  const pictures = {
    ImageData: data, canvas, OffscreenCanvas: offscreen, ImageBitmap: await createImageBitmap(data), blob, image,
    ...Object.fromEntries(["RGBA", "RGBX"].map((format) => [format, makeVideoFrame(format, width, height, rgba)])),
    ...Object.fromEntries(["BGRA", "BGRX"].map((format) => [format, makeVideoFrame(format, width, height, swap(rgba))])),
  };
  /** @type {Record<string, number>} */
  const found = {};
  for (const [kind, picture] of Object.entries(pictures)) found[kind] = countDifferent(await makePixels(picture), wanted);
  return found;
}

/** @param {Uint8Array} rgba */
const swap = (rgba) => rgba.map((value, place) => (place % 4 === 0 ? rgba[place + 2] : place % 4 === 2 ? rgba[place - 2] : value));

/** @param {string} format @param {number} width @param {number} height @param {Uint8Array} data @param {any} [colorSpace] */
function makeVideoFrame(format, width, height, data, colorSpace) {
  return new VideoFrame(data, {format, codedWidth: width, codedHeight: height, timestamp: 0, colorSpace});
}

/** Returns, for each layout and colour standard of YUV, how many values are not those of the planes. */
export async function compareYuv() {
  /** @type {Record<string, number>} */
  const found = {};
  const standards = [["smpte170m", "bt601"], ["bt709", "bt709"]];
  for (const format of ["I420", "NV12"]) {
    for (const [width, height] of [[32, 18], [33, 19]]) {
      for (const [matrix, ours] of standards) {
        for (const fullRange of [true, false]) {
          const [half, rows] = [(width + 1) >> 1, (height + 1) >> 1];
          const data = makeNoise(1, width * height + 2 * half * rows, 1);
          const frame = makeVideoFrame(format, width, height, data, {matrix, fullRange, primaries: "bt709", transfer: "bt709"});
          const offset = width * height;
          const [stride, second] = format === "I420" ? [1, half * rows] : [2, 1];
          const chroma = {data, rowStride: stride * half, pixelStride: stride};
          const planes = [{data}, {...chroma, offset}, {...chroma, offset: offset + second}];
          const range = fullRange ? "full" : "video";
          const wanted = makeFramePixels(/** @type {any} */ ({format: "yuv420", width, height, planes, matrix: ours, range}));
          found[`${format} ${width} ${ours} ${range}`] = countDifferent(await makePixels(frame), wanted);
          frame.close();
        }
      }
    }
  }
  return found;
}

/** Returns the size and the mean colour of a video of one colour, and what one without a picture says. */
export async function readVideo() {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [64, 48];
  const context = canvas.getContext("2d");
  const video = document.createElement("video");
  const early = await refuse(() => makePixels(video));
  video.muted = true;
  video.srcObject = canvas.captureStream();
  const timer = setInterval(() => {
    context.fillStyle = "rgb(200, 40, 90)";
    context.fillRect(0, 0, 64, 48);
  }, 30);
  await video.play();
  await new Promise((resolve) => {
    video.requestVideoFrameCallback(resolve);
  });
  const pixels = await makePixels(video);
  clearInterval(timer);
  return {early, width: pixels.width, height: pixels.height, mean: average(copyPixels(pixels).data)};
}

/** Returns the size of a camera's picture, as a video and as a VideoFrame of its track. */
export async function readCamera() {
  const stream = await navigator.mediaDevices.getUserMedia({video: {width: 320, height: 240}});
  const video = document.createElement("video");
  video.muted = true;
  video.srcObject = stream;
  await video.play();
  const frame = new VideoFrame(video);
  const {format} = frame;
  const [ofVideo, ofFrame] = [await makePixels(video), await makePixels(frame)];
  frame.close();
  const closed = await refuse(() => makePixels(frame));
  for (const track of stream.getTracks()) track.stop();
  const means = [average(copyPixels(ofVideo).data), average(copyPixels(ofFrame).data)];
  return {format, closed, sizes: [ofVideo, ofFrame].map(({width, height}) => [width, height]), means};
}

/** @param {Uint8Array} data */
function average(data) {
  const sums = [0, 0, 0];
  for (const [place, value] of data.entries()) sums[place % 3] += (3 * value) / data.length;
  return sums;
}

/** What pictures without pixels say. */
export async function refusePictures() {
  const image = new Image();
  const canvas = new OffscreenCanvas(0, 0);
  return {
    image: await refuse(() => makePixels(image)),
    canvas: await refuse(() => makePixels(canvas)),
    blob: await refuse(() => makePixels(new Blob(["no picture"]))),
    reason: new ModelError("input", "").reason,
  };
}
