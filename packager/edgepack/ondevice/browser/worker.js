// Does what edgepack's host asks, one command after the other: opens a bundle with the bundle's own code, times it,
// and runs samples.
//
// A message to the host answers its last command and waits for the next one. Both begin with the length of a header
// (4 bytes, big-endian) and the header, which is JSON; samples follow, each of which is a header's length, a header
// with the tensors' names, types and shapes, and the tensors' bytes (little-endian, the last axis is the fastest).

const base = new URL("./", import.meta.url);
const bundle = new URL("bundle/", base);
const {searchParams: told} = new URL(import.meta.url);
const page = told.get("page");

/** Golden samples in a profile. */
const PROFILED_RUNS = 10;
/** How often the clock has to move until its step is known. */
const TICKS = 50;

/** What is printed: onnxruntime-web 1.30.0 prints its profile. @type {string[]} */
const printed = [];
console.log = (...words) => {
  printed.push(words.join(" "));
};
// The bundle's code keeps the files that it has fetched in there: those that are measured here are nothing to keep.
Object.defineProperty(globalThis, "caches", {value: undefined});

/** @param {object} header @param {Uint8Array[]} [parts] */
function pack(header, parts = []) {
  const text = new TextEncoder().encode(JSON.stringify(header));
  const length = new DataView(new ArrayBuffer(4));
  length.setUint32(0, text.length);
  return new Blob([length, text, .../** @type {BlobPart[]} */ (parts)]);
}

/** Returns a header, and the bytes after it. @param {Uint8Array} bytes @returns {[header: any, rest: Uint8Array]} */
function unpack(bytes) {
  const end = 4 + new DataView(bytes.buffer, bytes.byteOffset).getUint32(0);
  return [JSON.parse(new TextDecoder().decode(bytes.subarray(4, end))), bytes.subarray(end)];
}

/** @param {number} ms */
const toNs = (ms) => Math.round(ms * 1e6);

/** Returns the step in which the clock moves, in nanoseconds. */
function findTickNs() {
  let [least, before] = [Infinity, performance.now()];
  for (let ticks = 0; ticks < TICKS;) {
    const now = performance.now();
    if (now === before) continue;
    least = Math.min(least, now - before);
    before = now;
    ticks++;
  }
  return Math.max(1, toNs(least));
}

/** Returns what WebGPU computes on, or why there is nothing. */
async function describeGpu() {
  const gpu = /** @type {any} */ (navigator).gpu;
  if (!gpu) return {absence: isSecureContext ? "there is no navigator.gpu" : "the page is no secure context"};
  try {
    const adapter = await gpu.requestAdapter();
    if (!adapter) return {absence: "navigator.gpu has no adapter"};
    const {vendor, architecture, device, description, isFallbackAdapter} = adapter.info;
    const name = [vendor, architecture, device, description].filter(Boolean).join(" ");
    const isFallback = Boolean(isFallbackAdapter ?? adapter.isFallbackAdapter);
    return {name, is_fallback: isFallback, features: [...adapter.features]};
  } catch (error) {
    return {absence: String(error)};
  }
}

async function describe() {
  return {
    user_agent: navigator.userAgent,
    cpu_count: navigator.hardwareConcurrency || 1,
    isolated: Boolean(globalThis.crossOriginIsolated),
    tick_ns: findTickNs(),
    gpu: await describeGpu(),
  };
}

/**
 * Returns the build of onnxruntime-web that variants need: the one with WebGPU only where there is a GPU for it.
 *
 * @param {any[]} variants of the manifest
 */
async function importRuntime(variants) {
  const onGpu = variants.flatMap(({providers}) => providers).some(({name}) => name.startsWith("WebGpu"));
  const build = onGpu && !("absence" in await describeGpu()) ? "webgpu" : "wasm";
  return import(new URL(`onnxruntime/ort.${build}.bundle.min.mjs`, base).href);
}

/** Sessions as onnxruntime makes them, whose creation and runs are timed. */
class Watched {
  /** @type {{session: any, run: any, createNs: number, firstNs: number}[]} */
  sessions = [];
  /** @param {any} ort @param {boolean} isProfiled */
  constructor(ort, isProfiled) {
    const create = async (/** @type {any} */ model, /** @type {any} */ options) =>
      this.#create(ort, isProfiled, model, options);
    this.ort = {...ort, InferenceSession: {create}};
  }

  /** @param {any} ort @param {boolean} isProfiled @param {any} model @param {any} options */
  async #create(ort, isProfiled, model, options) {
    if (!this.sessions.length) await startRuntime(ort);
    const profiling = isProfiled ? {enableProfiling: true, profileFilePrefix: "profile"} : {};
    const began = performance.now();
    const session = await ort.InferenceSession.create(model, {...options, ...profiling});
    const entry = {session, run: session.run.bind(session), createNs: toNs(performance.now() - began), firstNs: 0};
    session.run = async (/** @type {any[]} */ ...inputs) => {
      const started = performance.now();
      const outputs = await entry.run(...inputs);
      entry.firstNs ||= toNs(performance.now() - started);
      return outputs;
    };
    this.sessions.push(entry);
    return session;
  }
}

/** Starts WebAssembly, and its threads, with a small model: that belongs to no model's creation. @param {any} ort */
async function startRuntime(ort) {
  const response = await fetch(new URL("canary.onnx", base));
  const session = await ort.InferenceSession.create(await response.arrayBuffer(), {executionProviders: ["wasm"]});
  await session.release();
}

/**
 * A variant that is open: with the modules of the bundle's code that opened it.
 *
 * @typedef {object} Opened
 * @property {any} loaded
 * @property {any} goldens
 * @property {Watched} watched
 * @property {any} manifest
 * @property {any} tensors the module
 * @property {[output: string, input: string][]} state
 * @property {Map<string, any>} own the state that the last sample of `run` has reached
 * @property {Timing} timing
 */

/** @type {Opened} */
let opened;

/** What the bundle's package calls its inputs and outputs: nothing here uses these names. */
const NAMES = {inputs: {}, outputs: {}, answered: []};

/** @param {{variant: string | null, profiled?: boolean}} command */
async function open({variant, profiled = false}) {
  const manifest = await (await fetch(new URL("manifest.json", bundle))).json();
  const wanted = manifest.variants.filter((/** @type {any} */ {id}) => variant === null || id === variant);
  const ort = await importRuntime(wanted);
  const watched = new Watched(ort, profiled);
  const [{openBundle}, tensors] = await Promise.all(
    ["opener.js", "tensors.js"].map((name) => import(new URL(`runtime/${name}`, bundle).href)),
  );
  const options = {variant: variant ?? undefined, source: {baseUrl: bundle}, ort: watched.ort};
  const {loaded, goldens, passedOver, notes} = await openBundle(options, NAMES, () => ({}));
  const state = Object.entries(manifest.state ?? {});
  opened = /** @type {any} */ ({loaded, goldens, watched, manifest, tensors, state, own: new Map()});
  const samples = Array.from({length: goldens.count}, async (_, index) => goldens.readInputs(index));
  opened.timing = prepare(await Promise.all(samples));
  const own = watched.sessions.slice(-loaded.variant.buckets.length);
  return {
    variant: loaded.variant.id,
    passed_over: passedOver,
    notes,
    onnxruntime: ort.env.versions.web,
    threads: ort.env.wasm.numThreads ?? 1,
    session_create_ns: own.reduce((sum, {createNs}) => sum + createNs, 0),
    first_inference_ns: Math.max(...own.map(({firstNs}) => firstNs)),
    golden_min_sqnr_db: await checkGoldens(),
    tick_ns: findTickNs(),
  };
}

/** Runs the golden samples, each with its own state, and returns how near the worst output is. */
async function checkGoldens() {
  const {loaded, goldens} = opened;
  const all = [];
  for (let index = 0; index < goldens.count; index++) {
    const outputs = await loaded.run(await goldens.readInputs(index));
    all.push(await goldens.computeClosenessDb(index, loaded.variant.id, outputs));
    for (const name of listNotFinite(outputs)) opened.timing.excused.add(name);
  }
  return Math.max(-200, Math.min(...all));
}

/** @param {number | bigint} value */
const isBroken = (value) => typeof value === "number" && !Number.isFinite(value);

/** @param {Map<string, any>} outputs */
function listNotFinite(outputs) {
  return [...outputs].filter(([, {data}]) => Array.prototype.some.call(data, isBroken)).map(([name]) => name);
}

/**
 * Inferences that are timed, over samples in turn.
 *
 * @typedef {object} Timing
 * @property {any[]} feeds the inputs of each sample
 * @property {(feed: any) => Promise<any>} infer
 * @property {(feed: any, outputs: any) => any} addState returns a feed with the state that a run has put out
 * @property {(outputs: any) => string[]} listBroken returns the outputs with NaN or infinity
 * @property {number} next of the next sample
 * @property {any} reached the last outputs, of a model with a state
 * @property {Set<string>} excused outputs that have NaN or infinity for golden samples, too
 */

/**
 * Returns what is timed: a session's own run of tensors that are ready, as in the harness of boards. With a model for
 * each of several sizes, an inference includes choosing one, padding and cutting.
 *
 * @param {Map<string, any>[]} samples
 * @returns {Timing}
 */
function prepare(samples) {
  const {loaded} = opened;
  const feeds = samples.map((sample) => loaded.checkInputs(sample));
  const made = loaded.variant.buckets.length > 1 ? prepareSized(feeds) : prepareAlone(feeds);
  return {...made, next: 0, reached: null, excused: new Set()};
}

/** @param {Map<string, any>[]} feeds */
function prepareSized(feeds) {
  const {loaded, state} = opened;
  return {
    feeds,
    infer: async (/** @type {Map<string, any>} */ feed) => loaded.run(feed),
    addState: (/** @type {Map<string, any>} */ feed, /** @type {Map<string, any>} */ outputs) =>
      new Map([...feed, ...state.map(([output, input]) => /** @type {const} */ ([input, outputs.get(output)]))]),
    listBroken: listNotFinite,
  };
}

/** @param {Map<string, any>[]} feeds */
function prepareAlone(feeds) {
  const {watched, manifest, tensors, state} = opened;
  const {session, run: infer} = watched.sessions[watched.sessions.length - 1];
  // The session's own method again, which nothing counts.
  delete session.run;
  const names = manifest.outputs.map((/** @type {any} */ {name}) => name);
  const encode = (/** @type {any} */ {dtype}, /** @type {any} */ {data, shape}) =>
    new watched.ort.Tensor(dtype, dtype === "float16" ? tensors.narrow(data) : data, shape);
  return {
    feeds: feeds.map((feed) => Object.fromEntries(
      manifest.inputs.map((/** @type {any} */ spec) => [spec.name, encode(spec, feed.get(spec.name))]),
    )),
    infer: async (/** @type {any} */ feed) => infer(feed, names),
    addState: (/** @type {any} */ feed, /** @type {any} */ outputs) =>
      ({...feed, ...Object.fromEntries(state.map(([output, input]) => [input, outputs[output]]))}),
    listBroken: (/** @type {any} */ outputs) => listNotFinite(new Map(Object.entries(outputs))),
  };
}

/**
 * Times a single stream for a duration, and at least so many inferences.
 *
 * @param {{duration_s: number, iterations: number}} command
 */
async function time({duration_s: seconds, iterations}) {
  const {timing, state} = opened;
  const {feeds, infer, addState} = timing;
  const isFed = state.length > 0;
  /** @type {number[]} */
  const latencies = [];
  const began = performance.now();
  const end = began + seconds * 1000;
  let after = began;
  while (after < end || latencies.length < iterations) {
    const sample = feeds[timing.next++ % feeds.length];
    const before = performance.now();
    const outputs = await infer(isFed && timing.reached ? addState(sample, timing.reached) : sample);
    after = performance.now();
    latencies.push(toNs(after - before));
    if (isFed) timing.reached = outputs;
  }
  const broken = isFed ? timing.listBroken(timing.reached) : [];
  return {
    latencies_ns: latencies,
    from_ns: toNs(began),
    to_ns: toNs(after),
    not_finite: broken.filter((name) => !timing.excused.has(name)),
  };
}

/** @param {Uint8Array} bytes @returns {Map<string, any>[]} */
function readSamples(bytes) {
  const {decode, findElementBytes, countElements} = opened.tensors;
  const samples = [];
  let rest = bytes;
  while (rest.length) {
    const [{tensors}, after] = unpack(rest);
    rest = after;
    samples.push(new Map(tensors.map((/** @type {any} */ {name, dtype, shape}) => {
      const size = countElements(shape) * findElementBytes(dtype);
      const tensor = decode(dtype, shape, rest.subarray(0, size));
      rest = rest.subarray(size);
      return [name, tensor];
    })));
  }
  return samples;
}

/** @param {Map<string, any>} outputs @param {number} ns */
function packOutputs(outputs, ns) {
  const {manifest, tensors} = opened;
  const specs = [];
  const bytes = [];
  for (const {name, dtype} of manifest.outputs) {
    const {data, shape} = outputs.get(name);
    specs.push({name, dtype, shape});
    bytes.push(dtype === "float16" ? tensors.narrow(data) : data);
  }
  return pack({tensors: specs, ns}, bytes);
}

/** Runs samples one by one. A state that a sample leaves out is the model's own of the one before. */
async function run(/** @type {object} */ _, /** @type {Uint8Array} */ bytes) {
  const {loaded, state} = opened;
  const parts = [];
  for (const sample of readSamples(bytes)) {
    const feed = new Map([...opened.own, ...sample]);
    try {
      const began = performance.now();
      const outputs = await loaded.run(feed);
      const ns = toNs(performance.now() - began);
      opened.own = new Map(state.map(([output, input]) => [input, outputs.get(output)]));
      parts.push(packOutputs(outputs, ns));
    } catch (error) {
      parts.push(pack({tensors: [], error: String(/** @type {any} */ (error).message)}));
    }
  }
  return {parts};
}

/** Takes samples to be timed instead of the golden ones. */
async function replace(/** @type {object} */ _, /** @type {Uint8Array} */ bytes) {
  const {excused} = opened.timing;
  opened.timing = {...prepare(readSamples(bytes)), excused};
  return {};
}

/**
 * Starts onnxruntime as a variant needs it, without a model.
 *
 * @param {{variant: string}} command
 */
async function start({variant}) {
  const {variants} = await (await fetch(new URL("manifest.json", bundle))).json();
  await startRuntime(await importRuntime(variants.filter((/** @type {any} */ {id}) => id === variant)));
  return {};
}

/** Runs the first golden sample under onnxruntime's profiler, and returns what that printed. */
async function profile(/** @type {any} */ {variant}) {
  await open({variant, profiled: true});
  const {loaded, goldens, watched} = opened;
  const inputs = await goldens.readInputs(0);
  /** The session for the sample's size. @type {any} */
  let used;
  for (const {session, run: infer} of watched.sessions) {
    session.run = async (/** @type {any[]} */ ...given) => {
      used = session;
      return infer(...given);
    };
  }
  for (let number = 0; number < PROFILED_RUNS; number++) await loaded.run(inputs);
  printed.length = 0;
  used.endProfiling();
  return {events: printed.join("\n")};
}

/** Times the canary, on the CPU in one thread. */
async function canary(/** @type {{warm_up_s: number, duration_s: number, iterations: number}} */ command) {
  const ort = await import(new URL("onnxruntime/ort.wasm.bundle.min.mjs", base).href);
  ort.env.wasm.numThreads = 1;
  const model = await (await fetch(new URL("canary.onnx", base))).arrayBuffer();
  const session = await ort.InferenceSession.create(model, {executionProviders: ["wasm"]});
  const x = new ort.Tensor("float32", new Float32Array(48 * 32 * 32).fill(1), [1, 48, 32, 32]);
  const timing = {feeds: [{x}], infer: async (/** @type {any} */ feed) => session.run(feed), next: 0};
  opened = /** @type {any} */ ({timing, state: []});
  await time({duration_s: command.warm_up_s, iterations: 1});
  return time(command);
}

/** @type {Record<string, (command: any, bytes: Uint8Array) => Promise<any>>} */
const COMMANDS = {describe, start, open, time, run, replace, profile, canary};

/** @param {any} command @param {Uint8Array} bytes */
async function answer(command, bytes) {
  try {
    const {parts, ...header} = await COMMANDS[command.do](command, bytes);
    return pack(header, parts);
  } catch (error) {
    const {reason, name, message} = /** @type {any} */ (error);
    return pack(reason === "variant" ? {refused: message} : {failed: `${reason ?? name}: ${message}`});
  }
}

/** @type {Blob | null} */
let said = pack({});
let number = Number(told.get("number"));
const asked = `next?page=${page}&worker=${number}`;
for (;;) {
  const response = await fetch(`${asked}&answers=${said ? number : ""}`, {method: "POST", body: said});
  said = null;
  // Nothing is asked for the moment.
  if (response.status === 204) continue;
  if (!response.ok) break;
  const [command, bytes] = unpack(new Uint8Array(await response.arrayBuffer()));
  number = command.number;
  said = await answer(command, bytes);
}
