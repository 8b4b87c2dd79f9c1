import {ModelError, explainFailure, requireInput} from "./errors.js";
import {makeFramePixels, makePlainPixels} from "./frames.js";

/**
 * What a browser shows, and what its cameras give, to upright RGB rows.
 *
 * @typedef {import("./types.d.ts").Picture} Picture
 * @typedef {import("./images.js").Pixels} Pixels
 */

/**
 * Returns whether a value is meant as a picture: all have a size, but for files.
 *
 * @param {unknown} value
 * @returns {value is Picture}
 */
export function isPicture(value) {
  if (typeof value !== "object" || value === null) return false;
  if (isA("Blob", value) || isA("VideoFrame", value)) return true;
  return "width" in value && typeof value.width === "number";
}

/**
 * Returns the pixels of a picture.
 *
 * @param {Picture} picture
 * @returns {Promise<Pixels>}
 * @throws {ModelError} `input`, if it has no pixels, or they cannot be read
 */
export async function makePixels(picture) {
  if ("planes" in picture) return makeFramePixels(picture);
  // ImageData too.
  if ("data" in picture) return makePlainPixels(picture);
  try {
    return await readPixels(picture);
  } catch (error) {
    throw explainFailure(error, "the picture cannot be read", "input");
  }
}

/** @param {Exclude<Picture, import("./types.d.ts").Frame | import("./types.d.ts").RawPixels>} picture */
async function readPixels(picture) {
  if (isA("Blob", picture)) {
    const bitmap = await createImageBitmap(/** @type {Blob} */ (picture));
    try {
      return drawPicture(bitmap, bitmap.width, bitmap.height);
    } finally {
      bitmap.close();
    }
  }
  if (isA("VideoFrame", picture)) return readVideoFrame(/** @type {VideoFrame} */ (picture));
  if (isA("HTMLVideoElement", picture)) return readVideo(/** @type {HTMLVideoElement} */ (picture));
  if (isA("HTMLImageElement", picture)) {
    const image = /** @type {HTMLImageElement} */ (picture);
    requireInput(image.complete && image.naturalWidth > 0, "the image has not been loaded: wait for image.decode()");
    return drawPicture(image, image.naturalWidth, image.naturalHeight);
  }
  const {width, height} = /** @type {HTMLCanvasElement} */ (picture);
  return drawPicture(/** @type {CanvasImageSource} */ (picture), width, height);
}

/** @param {HTMLVideoElement} video */
async function readVideo(video) {
  requireInput(
    video.readyState >= 2 && video.videoWidth > 0, "the video has no picture yet: wait for its event loadeddata",
  );
  if (typeof VideoFrame === "undefined") return drawPicture(video, video.videoWidth, video.videoHeight);
  const frame = new VideoFrame(video);
  try {
    return await readVideoFrame(frame);
  } finally {
    frame.close();
  }
}

/** @type {Record<string, {format: string, planes: number}>} */
const FORMATS = {
  I420: {format: "yuv420", planes: 3},
  NV12: {format: "yuv420", planes: 2},
  RGBA: {format: "rgba", planes: 1},
  RGBX: {format: "rgb", planes: 1},
  BGRA: {format: "bgra", planes: 1},
  BGRX: {format: "bgrx", planes: 1},
};

/** By WebCodecs' names; without one, YUV is BT.709 in video range. Source: WebCodecs, "Pick Color Space". */
const MATRICES = new Map([["smpte170m", "bt601"], ["bt470bg", "bt601"], ["bt709", "bt709"], [null, "bt709"], [undefined, "bt709"]]);

/**
 * Returns the pixels of a frame, which stays open. Formats and colours that the code does not know are the browser's to convert.
 *
 * @param {VideoFrame} frame
 * @returns {Promise<Pixels>}
 */
async function readVideoFrame(frame) {
  const {visibleRect, colorSpace} = frame;
  if (!visibleRect) throw new ModelError("input", "the video frame is closed: call close() after the answer is there");
  const {width, height} = visibleRect;
  const described = FORMATS[frame.format ?? ""];
  const matrix = MATRICES.get(colorSpace.matrix);
  // Newer browsers have these two.
  const {rotation = 0, flip = false} = /** @type {{rotation?: number, flip?: boolean}} */ (/** @type {unknown} */ (frame));
  const isYuv = described?.format === "yuv420";
  if (!described || flip || (isYuv && !matrix)) return drawPicture(frame, frame.displayWidth, frame.displayHeight);
  const data = new Uint8Array(frame.allocationSize());
  const layout = await frame.copyTo(data);
  const planes = layout.map(({offset, stride}) => ({data, offset, rowStride: stride, pixelStride: findStride(described.format)}));
  // The second plane of NV12 holds both, U first.
  if (described.planes === 2) {
    planes[1].pixelStride = 2;
    planes.push({...planes[1], offset: planes[1].offset + 1});
  }
  const range = colorSpace.fullRange ? "full" : "video";
  return makeFramePixels(/** @type {any} */ ({format: described.format, width, height, planes, rotation, matrix, range}));
}

/** @param {string} format */
function findStride(format) {
  // RGBX has three bytes of a pixel and one that is none.
  return format === "yuv420" ? 1 : 4;
}

/**
 * Draws a picture on a canvas and returns the pixels there, in sRGB.
 *
 * @param {CanvasImageSource} picture
 * @param {number} width
 * @param {number} height
 * @returns {Pixels}
 */
function drawPicture(picture, width, height) {
  requireInput(width > 0 && height > 0, `a picture of ${width} x ${height} pixels has nothing in it`);
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d", {willReadFrequently: true});
  if (!context) throw new Error("this browser gives no 2d context");
  context.drawImage(picture, 0, 0, width, height);
  return makePlainPixels(context.getImageData(0, 0, width, height, {colorSpace: "srgb"}));
}

/**
 * Returns whether a value is of a class that only some environments have.
 *
 * @param {string} name
 * @param {object} value
 */
function isA(name, value) {
  const Class = /** @type {any} */ (globalThis)[name];
  return typeof Class === "function" && value instanceof Class;
}
