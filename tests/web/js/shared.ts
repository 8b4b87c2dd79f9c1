// An app with three models, as TypeScript sees it: what they give is of the same types.

import {Detector, ModelError as DetectorError} from "edgepack-detector";
import type {Detection, Picture} from "edgepack-detector";
import {PairModel} from "edgepack-pair";
import {ModelError, Tensor} from "edgepack-runtime";
import type {AnswerOptions, Detection as SharedDetection, OpenOptions} from "edgepack-runtime";
import {Text, Tensor as TextTensor} from "edgepack-text";

const options: OpenOptions = {variant: "cpu-fp32"};
const detector: Detector = await Detector.open(options);
const text: Text = await Text.open(options);
const pair: PairModel = await PairModel.open(options);
const few: AnswerOptions = {most: 3};

function count(found: SharedDetection[]): number {
  return found.length;
}

function norm(tensor: Tensor<Float32Array>): number {
  return Math.hypot(...tensor.data);
}

export async function use(picture: Picture): Promise<number> {
  const objects: Detection[] = (await detector.predict(picture, few)).answers.objects;
  const same: SharedDetection[] = objects;
  const images: Tensor<Float32Array> = new TextTensor(new Float32Array(3072), [1, 3, 32, 32]);
  const sizes = [(await detector.run({images})).objects, (await pair.run({pixels: picture, referenceImage: picture})).difference];
  return count(objects) + count(same) + sizes.map(norm).length;
}

export async function explain(words: string): Promise<string> {
  try {
    return `${norm((await text.predict(words)).hidden)}`;
  } catch (error) {
    if (!(error instanceof ModelError)) throw error;
    const own: DetectorError = error;
    return own.reason;
  }
}
