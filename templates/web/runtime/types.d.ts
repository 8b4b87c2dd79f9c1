/** A class that only some environments have; never elsewhere. */
type Global<Name extends string> = typeof globalThis extends { [K in Name]: { prototype: infer T } } ? T : never;

/** Why a call failed. */
export type Reason =
  /** What was given does not fit the model: a picture without pixels, another shape, an unknown label. */
  | "input"
  /** The model was closed. */
  | "closed"
  /** No variant works here, or there is none with this id; the message has the reason for each. */
  | "variant"
  /** onnxruntime cannot be imported, or does not start in time; or edgepack-runtime is of another version. */
  | "runtime"
  /** A file of the bundle cannot be read. */
  | "missing"
  /** A file is not the one that the manifest lists. */
  | "changed"
  /** The manifest or another file cannot be understood. */
  | "damaged"
  /** The GPU's device was lost. Close the model and open it again. */
  | "device-lost"
  /** There is not enough memory. */
  | "memory"
  /** onnxruntime failed otherwise. */
  | "inference";

/** What every call throws: a text for people, and a reason for code. The app keeps running. */
export class ModelError extends Error {
  private constructor();
  readonly name: "ModelError";
  readonly reason: Reason;
}

export type TypedArray =
  | Int8Array
  | Uint8Array
  | Int16Array
  | Uint16Array
  | Int32Array
  | Uint32Array
  | BigInt64Array
  | BigUint64Array
  | Float32Array
  | Float64Array;

/** Numbers with a shape: an input or output of the model. The last axis is the fastest. */
export class Tensor<D extends TypedArray = TypedArray> {
  /**
   * @param data the elements, not copied; float16 as float32, bool as bytes 0 and 1
   * @param shape the size of each axis; empty for a single number
   * @throws {ModelError} `input`, if the array's size does not match the shape
   */
  constructor(data: D, shape: readonly number[]);
  readonly data: D;
  readonly shape: readonly number[];
  toString(): string;
}

export type Bytes = Uint8Array | Uint8ClampedArray;

/** One plane of a frame. */
export interface Plane {
  data: Bytes;
  /** From one row's first byte to the next row's; without one, rows follow each other without gaps. */
  rowStride?: number;
  /** From one sample's first byte to the next one's in its row; without one, samples follow each other. */
  pixelStride?: number;
  /** The first sample's place in `data`; 0 without one. Two planes may share an array. */
  offset?: number;
}

/** A picture as a camera gives it. */
export interface Frame {
  /**
   * `yuv420`: three planes, Y, and U and V with half as many columns and rows, rounded up (I420, or NV12 and NV21,
   * whose U and V lie in one array); `rgb`, `rgba` or `bgra`: one plane of 3 or 4 bytes for each pixel. Transparent
   * pixels, not premultiplied, are laid over white.
   */
  format: "yuv420" | "rgb" | "rgba" | "bgra";
  /** Of the frame as it lies in memory, in pixels. */
  width: number;
  height: number;
  planes: readonly Plane[];
  /** By how many degrees the frame has to be turned clockwise to be upright; 0 without one. */
  rotation?: 0 | 90 | 180 | 270;
  /** Of yuv420; `bt601` without one. */
  matrix?: "bt601" | "bt709";
  /** Of yuv420: Y from 0 to 255 (`full`, and without one) or from 16 to 235 (`video`). */
  range?: "full" | "video";
}

/** Rows from the top without gaps, three bytes (R, G, B) or four (R, G, B, A; not premultiplied) per pixel. */
export interface RawPixels {
  data: Bytes;
  width: number;
  height: number;
}

/**
 * A picture of any size. Transparent places become white.
 *
 * Frames, `ImageData` and a `VideoFrame` in I420, NV12, RGBA, RGBX, BGRA or BGRX give the same numbers in every
 * browser, as in the other languages. A `<video>` is read as a `VideoFrame` where the browser has such; what else a
 * browser draws or decodes is as its canvas gives it.
 */
export type Picture =
  | Frame
  | RawPixels
  | Global<"ImageData">
  | Global<"VideoFrame">
  | Global<"HTMLVideoElement">
  | Global<"HTMLCanvasElement">
  | Global<"OffscreenCanvas">
  | Global<"HTMLImageElement">
  | Global<"ImageBitmap">
  | Global<"Blob">;

/** How answers are made; what is left out is as the project says. */
export interface AnswerOptions {
  /** The least score, from 0 to 1. Of a classification, all classes count without one. */
  score?: number;
  /** Of two boxes of one class that overlap by more than this part of their union, the better one stays. */
  iou?: number;
  /** How many objects a detection gives at most. */
  most?: number;
  /** How many classes a classification gives at most. */
  top?: number;
  /** The labels that count; all without any. */
  allow?: readonly string[];
}

/** One class of a classification. */
export interface Classification {
  readonly index: number;
  /** null where the bundle has no labels, or fewer than classes. */
  readonly label: string | null;
  /** After the activation that the project names, if any. */
  readonly score: number;
}

/** One point of an object, in pixels of the upright picture, and within it. */
export interface Keypoint {
  readonly x: number;
  readonly y: number;
  /** null where the model gives none. */
  readonly score: number | null;
}

/** One object in a picture. */
export interface Detection {
  /** Of its class. */
  readonly index: number;
  readonly label: string | null;
  readonly score: number;
  /** In pixels of the upright picture, and within it. */
  readonly box: readonly [left: number, top: number, right: number, bottom: number];
  /** In the model's order, where it gives some. */
  readonly keypoints?: readonly Keypoint[];
}

/** The class at each pixel of the upright picture. */
export interface Mask {
  readonly width: number;
  readonly height: number;
  /** (height, width); 255 where the model did not see. */
  readonly classes: Uint8Array;
  /** By class; empty where the bundle has none. */
  readonly labels: readonly string[];
}

/** What one probability decides. */
export interface Decision {
  readonly score: number;
  /** Whether the score is at least the project's threshold. */
  readonly positive: boolean;
}

/** A text that the model reads. */
export interface Transcription {
  readonly text: string;
  /** The mean of the scores of the steps that symbols were read in; 0 where there are none. */
  readonly score: number;
}

export type Answer = Classification[] | Detection[] | Float32Array[] | Mask | Decision[] | Transcription;

/** A variant that is better than the one in use but is not used, and why. */
export interface PassedOver {
  readonly variant: string;
  readonly reason: string;
}

/** The result of running the golden inputs. */
export interface SelfTest {
  /** The id of the variant that ran. */
  readonly variant: string;
  /** For each golden sample, the closeness of the worst output in dB; 200 means equal. */
  readonly decibels: readonly number[];
  /** The dB that each golden sample must reach. */
  readonly needed: number;
  /** Whether all golden samples reach it. */
  readonly passed: boolean;
}

/**
 * Where the bundle's files are: the address of a folder, relative to the page, or a function that returns the bytes of
 * a path such as `models/cpu-fp32.onnx`, for example of an encrypted file.
 */
export type Source =
  | { baseUrl: string | URL }
  | ((path: string) => Promise<ArrayBuffer | Uint8Array> | ArrayBuffer | Uint8Array);

export interface OpenOptions {
  /** The only variant to use; without one, the best that works. */
  variant?: string;
  /** Where the bundle's files are; without one, beside this package's code. */
  source?: Source;
  /** The module of `onnxruntime-web` or `onnxruntime-node` to use; without one, the package imports it. */
  ort?: Runtime | { default: Runtime };
  /**
   * Whether a picture that is much larger than the input is made smaller first, by averages of blocks of 2, 4 or 8
   * pixels. That takes less time, but the input is then not what it is in Python and in the project's metric, and
   * answers may differ. A model without pictures that are resized before it refuses it: the reason `input`.
   */
  prescale?: boolean;
}

/** The part of onnxruntime's JavaScript packages that this code calls. */
export interface Runtime {
  env: {
    versions: { web?: string; node?: string };
    wasm: { numThreads?: number; initTimeout?: number };
    webgpu?: { device?: unknown };
  };
  InferenceSession: { create(model: Uint8Array, options?: any): Promise<RuntimeSession> };
  Tensor: new (type: any, data: any, dims: readonly number[]) => any;
}

export interface RuntimeTensor {
  readonly dims: readonly number[];
  readonly data: any;
}

export interface RuntimeSession {
  run(feeds: any, fetches: any): Promise<any>;
  release(): Promise<void>;
}
