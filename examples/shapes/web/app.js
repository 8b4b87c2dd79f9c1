import {drawBoxes, listFound} from "./boxes.js";
import {Detector} from "./detector.js";

const [camera, file, score, least, status, video, image, boxes, found] =
  ["camera", "file", "score", "least", "status", "video", "image", "boxes", "found"].map((id) => document.getElementById(id));

/** What getUserMedia refuses, in words for people. */
const REFUSALS = {
  NotAllowedError: "This page may not use the camera: allow it in the browser's settings, or open a picture.",
  NotFoundError: "There is no camera: open a picture.",
  NotReadableError: "Another program uses the camera: close it, or open a picture.",
};

const detector = new Detector();
let variant = "";
/** What the camera gives; null while it is off. */
let stream = null;

async function startCamera() {
  if (!navigator.mediaDevices) throw new Error("A camera needs a page over HTTPS, or on this computer: open a picture.");
  // People are asked once, however often they click.
  camera.disabled = true;
  const asked = navigator.mediaDevices.getUserMedia({video: {facingMode: "environment", width: {ideal: 640}}});
  const opened = await asked.finally(() => {
    camera.disabled = false;
  });
  stopCamera();
  stream = opened;
  camera.textContent = "Stop the camera";
  opened.getVideoTracks()[0].addEventListener("ended", () => {
    stopCamera();
    tell("The camera is gone: start it again, or open a picture.");
  });
  video.srcObject = opened;
  show(video);
  await video.play();
  await watch(opened);
}

function stopCamera() {
  for (const track of stream?.getTracks() ?? []) track.stop();
  stream = null;
  camera.textContent = "Start the camera";
  show(null);
}

/** Looks at the newest frame again and again. Frames that come while the model runs are left out. */
async function watch(watched) {
  const times = [];
  while (watched.active) {
    await new Promise((done) => {
      video.requestVideoFrameCallback(done);
    });
    if (!watched.active) return;
    const {videoWidth, videoHeight} = video;
    const frame = typeof VideoFrame === "undefined" ? await createImageBitmap(video) : new VideoFrame(video);
    const objects = await detector.predict(frame, {score: score.valueAsNumber});
    if (!watched.active) return;
    present(objects, videoWidth, videoHeight);
    times.push(performance.now());
    while (times[0] < times.at(-1) - 1000) times.shift();
    tell(`${variant}, ${times.length} frames a second`);
  }
}

async function openPicture() {
  const [picture] = file.files;
  if (!picture) return;
  stopCamera();
  URL.revokeObjectURL(image.src);
  image.src = URL.createObjectURL(picture);
  await image.decode();
  show(image);
  await lookAtPicture();
}

async function lookAtPicture() {
  const objects = await detector.predict(file.files[0], {score: score.valueAsNumber});
  if (image.hidden) return;
  present(objects, image.naturalWidth, image.naturalHeight);
  tell(variant);
}

/** Shows the video, the picture or neither, without boxes. */
function show(shown) {
  for (const each of [video, image]) each.hidden = each !== shown;
  drawBoxes(boxes, [], 1, 1);
  found.textContent = "";
}

function present(objects, width, height) {
  drawBoxes(boxes, objects, width, height);
  found.textContent = listFound(objects);
}

function tell(text) {
  status.textContent = text;
}

/** Does something, and tells what goes wrong. */
async function attempt(action) {
  try {
    await action();
  } catch (error) {
    stopCamera();
    tell(REFUSALS[error.name] ?? error.message);
  }
}

camera.addEventListener("click", () => attempt(stream ? stopCamera : startCamera));
file.addEventListener("change", () => attempt(openPicture));
score.addEventListener("input", () => {
  least.textContent = score.valueAsNumber.toFixed(2);
  if (!image.hidden) attempt(lookAtPicture);
});

await attempt(async () => {
  const {variant: chosen, notes} = await detector.open();
  variant = chosen;
  tell(variant);
  for (const note of notes) console.info(note);
});
