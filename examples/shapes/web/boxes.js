/** Of each label: colours that people with any kind of colour vision tell apart (Okabe and Ito). */
const COLOURS = {circle: "#e69f00", square: "#56b4e9", triangle: "#009e73"};
const LINE = 3;
const TEXT = 16;

/** Draws boxes on a canvas that lies over a picture of width x height pixels. */
export function drawBoxes(canvas, objects, width, height) {
  // A canvas that gets a size is empty.
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  // Lines and letters are equally large on the screen, however large the picture is.
  const unit = width / (canvas.clientWidth || width);
  context.lineWidth = LINE * unit;
  context.font = `${TEXT * unit}px system-ui, sans-serif`;
  context.textBaseline = "bottom";
  for (const {label, score, box: [left, top, right, bottom]} of objects) {
    const words = `${label} ${Math.round(score * 100)} %`;
    context.fillStyle = context.strokeStyle = COLOURS[label] ?? "white";
    context.strokeRect(left, top, right - left, bottom - top);
    const foot = Math.max(top, TEXT * 1.2 * unit);
    context.fillRect(left, foot - TEXT * 1.2 * unit, context.measureText(words).width, TEXT * 1.2 * unit);
    context.fillStyle = "black";
    context.fillText(words, left, foot);
  }
}

/** Returns what was found in words, for people who do not see the boxes: "2 circles, 1 square". */
export function listFound(objects) {
  const counts = Map.groupBy(objects, ({label}) => label);
  const words = [...counts].map(([label, {length}]) => `${length} ${label}${length > 1 ? "s" : ""}`);
  return words.join(", ") || "No shapes";
}
