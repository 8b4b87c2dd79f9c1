// The page in which edgepack measures: it keeps the host informed, and has a worker that does what the host asks.
//
// Each process run is a new worker, and begins with a new instance of onnxruntime. The page tells the host every few
// seconds that it is there: a worker that computes tells nothing.

const SAY_EVERY_MS = 2000;

/** @param {string} text */
function show(text) {
  const place = document.getElementById("said");
  if (place) place.textContent = text;
}

/**
 * Tells the host something; `what` is a path below the page's address.
 *
 * @param {string} what
 * @param {string} [text]
 */
const tell = async (what, text = "") => fetch(what, {method: "POST", body: text});

/** @param {string} page the page's id, which the host gave it */
function begin(page) {
  /** @type {Worker} */
  let worker;
  let begun = -1;

  /** @param {number} number of the worker: that of the host's command that its first message answers */
  function start(number) {
    worker?.terminate();
    begun = number;
    worker = new Worker(`worker.js?page=${page}&number=${number}`, {type: "module"});
    worker.addEventListener("error", ({message}) => {
      tell(`failed?page=${page}`, message || "its worker cannot be loaded");
    });
  }

  async function stay() {
    try {
      const response = await tell(`alive?page=${page}&hidden=${Number(document.hidden)}`);
      if (!response.ok) throw new Error("another page measures now");
      // The host wants a new worker, whatever this one is at.
      const wanted = Number(await response.text());
      if (wanted > begun) start(wanted);
    } catch {
      clearInterval(timer);
      worker.terminate();
      show("edgepack has ended. This page may be closed.");
    }
  }
  const timer = setInterval(stay, SAY_EVERY_MS);
  document.addEventListener("visibilitychange", stay);
  addEventListener("pagehide", () => navigator.sendBeacon(`closed?page=${page}`));
  show("edgepack measures in this page. Keep it open and in front.");
  start(0);
}

const hello = await tell("hello");
if (hello.ok) begin(await hello.text());
else show(await hello.text());
