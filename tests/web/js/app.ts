// An app that uses a bundle, as TypeScript sees it: each name and type that the package has.

import {Detector, ModelError, Tensor} from "edgepack-detector";
import type {
  AnswerOptions, Answers, Detection, Frame, Inputs, OpenOptions, Outputs, PassedOver, Picture, Plane, Prediction,
  RawPixels, Reason, SelfTest, Source,
} from "edgepack-detector";
import * as ort from "onnxruntime-web";

const source: Source = {baseUrl: "/models/detector/"};
const decrypting: Source = async (path) => new TextEncoder().encode(path);
const options: OpenOptions = {variant: "cpu-fp32", source, ort, prescale: true};
const model: Detector = await Detector.open(options);
const other: Detector = await Detector.open({source: decrypting});
const passedOver: readonly PassedOver[] = model.passedOver;
const notes: readonly string[] = model.notes;
const wanted: AnswerOptions = {score: 0.5, iou: 0.4, most: 3, allow: ["cup"]};

export async function find(picture: Picture): Promise<Detection[]> {
  const {answers, objects}: Prediction = await model.predict(picture, wanted);
  const same: Answers = answers;
  const shape: readonly number[] = objects.shape;
  const values: Float32Array = objects.data;
  return shape.length && values.length ? same.objects : [];
}

export async function findAll(video: HTMLVideoElement, frame: VideoFrame, canvas: OffscreenCanvas, file: File): Promise<number> {
  const plane: Plane = {data: new Uint8Array(4), pixelStride: 2};
  const yuv: Frame = {format: "yuv420", width: 2, height: 2, planes: [plane, plane, plane], rotation: 90};
  const pixels: RawPixels = {data: new Uint8ClampedArray(16), width: 2, height: 2};
  let count = 0;
  for (const picture of [video, frame, canvas, file, yuv, pixels, new ImageData(2, 2)]) count += (await find(picture)).length;
  return count;
}

export async function run(): Promise<number | string> {
  const inputs: Inputs = {images: new Tensor(new Float32Array(3072), [1, 3, 32, 32])};
  try {
    const {objects}: Outputs = await other.run(inputs);
    const [first] = objects.data;
    return first ?? `${objects}`;
  } catch (error) {
    if (!(error instanceof ModelError)) throw error;
    const reason: Reason = error.reason;
    return reason === "device-lost" ? error.message : reason;
  }
}

const test: SelfTest = await model.selfTest();
console.log(model.variant, passedOver, notes, test.passed, test.decibels, test.needed);
await model.close();
