import {ModelError, explainFailure, formatLine} from "./errors.js";

/**
 * @typedef {import("./types.d.ts").Source} Source
 * @typedef {import("./manifest.js").BundleFile} BundleFile
 * @typedef {(path: string) => Promise<Uint8Array>} Read
 * @typedef {(path: string) => URL} Locate
 * @typedef {() => Readonly<Record<string, URL>>} Packed returns where the package has the bundle's files, by their paths
 */

const MANIFEST = "manifest.json";

/** Whether this is Node, whose files are read from the disk. */
export const isNode = typeof process !== "undefined" && Boolean(process.versions?.node) && typeof window === "undefined";

/**
 * The bundle's files. What the manifest lists is compared with its SHA-256 there before anything reads it.
 *
 * In a browser, files are kept in Cache Storage by their digest, in a cache for each model, and a later opening takes
 * them from there: only the manifest is fetched each time.
 */
export class Files {
  #read;
  /** @type {Map<string, BundleFile>} */
  #known = new Map();
  /** @type {Cache | undefined} */
  #cache;
  /** @type {(note: string) => void} */
  #tell;
  #isOnDisk = false;

  /**
   * @param {Source | undefined} source
   * @param {(note: string) => void} tell is told what does not work as it should
   * @param {Packed} packed where they are without a source
   */
  constructor(source, tell, packed) {
    this.#tell = tell;
    if (typeof source === "function") {
      this.#read = readFrom(source);
      return;
    }
    const locate = makeLocate(source?.baseUrl, packed);
    this.#isOnDisk = isNode && locate(MANIFEST).protocol === "file:";
    this.#read = this.#isOnDisk ? readFile(locate) : fetchFile(locate);
  }

  /**
   * Begins to compare files with a manifest, and to keep them where `name` is given.
   *
   * @param {readonly BundleFile[]} files
   * @param {string} name of the cache
   */
  async know(files, name) {
    this.#known = new Map(files.map((file) => [file.path, file]));
    if (!globalThis.crypto?.subtle) this.#tell("this page is no secure context: its files are not verified, and not kept");
    else if (!this.#isOnDisk && typeof caches !== "undefined") this.#cache = await this.#open(`edgepack-${name}`);
  }

  /** @param {string} name */
  async #open(name) {
    try {
      return await caches.open(name);
    } catch (error) {
      this.#tell(`files are not kept: ${formatLine(error)}`);
      return undefined;
    }
  }

  /**
   * Returns a file's bytes.
   *
   * @param {string} path
   * @throws {ModelError} `missing`, if the file cannot be read; `changed`, if it is not the file of the manifest
   */
  async readBytes(path) {
    const known = this.#known.get(path);
    if (!known || !globalThis.crypto?.subtle) return this.#read(path);
    const kept = await this.#cache?.match(makeKey(known));
    if (kept) {
      const bytes = new Uint8Array(await kept.arrayBuffer());
      if (await computeDigest(bytes) === known.sha256) return bytes;
    }
    const bytes = await this.#read(path);
    const found = await computeDigest(bytes);
    if (found !== known.sha256) {
      const sizes = bytes.length === known.size_bytes ? "" : ` and ${bytes.length} bytes, not ${known.size_bytes}`;
      throw new ModelError(
        "changed", `the bundle is damaged: ${path} has the SHA-256 ${found}, not ${known.sha256}${sizes}: get it anew`,
      );
    }
    await this.#keep(known, bytes);
    return bytes;
  }

  /**
   * @param {BundleFile} known
   * @param {Uint8Array} bytes
   */
  async #keep(known, bytes) {
    try {
      await this.#cache?.put(makeKey(known), new Response(/** @type {BodyInit} */ (bytes)));
    } catch (error) {
      // Such as a full disk: what was read is right all the same.
      this.#tell(`files are not kept: ${formatLine(error)}`);
      this.#cache = undefined;
    }
  }

  /**
   * Returns a file's text.
   *
   * @param {string} path
   */
  async readText(path) {
    // A byte order mark belongs to the text: what reads it knows what to do with it.
    return new TextDecoder("utf-8", {ignoreBOM: true}).decode(await this.readBytes(path));
  }

  /** Removes what is kept of other versions of the model. */
  async forgetOthers() {
    const wanted = new Set([...this.#known.values()].map((file) => new Request(makeKey(file)).url));
    const all = await this.#cache?.keys() ?? [];
    await Promise.all(all.filter(({url}) => !wanted.has(url)).map((request) => this.#cache?.delete(request)));
  }
}

/**
 * Returns the key of a file in Cache Storage: an address that nothing is fetched from.
 *
 * @param {BundleFile} file
 */
function makeKey({sha256}) {
  return `https://edgepack.invalid/sha256/${sha256}`;
}

/**
 * Returns what locates files: in a folder, where one is named, whose address is relative to the page, in Node to the
 * package.
 *
 * @param {string | URL | undefined} base
 * @param {Packed} packed
 * @returns {Locate}
 */
function makeLocate(base, packed) {
  if (base === undefined) {
    const files = locatePacked(packed);
    return (path) => files[path] ?? resolvePath(path, files[MANIFEST]);
  }
  const folder = locateFolder(String(base).endsWith("/") ? String(base) : `${base}/`, packed);
  return (path) => resolvePath(path, folder);
}

/** @param {Packed} packed */
function locatePacked(packed) {
  try {
    return packed();
  } catch (error) {
    // Bundlers leave import.meta.url out of formats other than ES modules.
    throw new ModelError(
      "missing",
      `this package does not know where it is: ${formatLine(error)}: have the bundler write ES modules, or name the files'`
        + " folder with its whole address, open({source: {baseUrl}})",
      error,
    );
  }
}

/**
 * @param {string} folder
 * @param {Packed} packed
 */
function locateFolder(folder, packed) {
  if (/^[a-z][a-z0-9+.-]+:/i.test(folder)) return new URL(folder);
  const page = typeof document === "undefined" ? globalThis.location?.href : document.baseURI;
  return new URL(folder, page ?? locatePacked(packed)[MANIFEST]);
}

/**
 * @param {string} path
 * @param {URL} folder
 */
function resolvePath(path, folder) {
  return new URL(path.split("/").map(encodeURIComponent).join("/"), folder);
}

/**
 * @param {(path: string) => Promise<ArrayBuffer | Uint8Array> | ArrayBuffer | Uint8Array} source
 * @returns {Read}
 */
function readFrom(source) {
  return async (path) => {
    try {
      const found = await source(path);
      return found instanceof Uint8Array ? found : new Uint8Array(found);
    } catch (error) {
      throw explainMissing(path, error);
    }
  };
}

/**
 * @param {Locate} locate
 * @returns {Read}
 */
function readFile(locate) {
  // An import would have to be there in browsers, too, for bundlers.
  const files = process.getBuiltinModule("node:fs/promises");
  return async (path) => {
    try {
      return await files.readFile(locate(path));
    } catch (error) {
      throw explainMissing(path, error);
    }
  };
}

/**
 * @param {Locate} locate
 * @returns {Read}
 */
function fetchFile(locate) {
  return async (path) => {
    const url = locate(path);
    try {
      const response = await fetch(url);
      if (!response.ok) throw new Error(`${response.status} ${response.statusText}`.trim());
      return new Uint8Array(await response.arrayBuffer());
    } catch (error) {
      throw explainMissing(url.href, error);
    }
  };
}

/**
 * @param {string} path
 * @param {unknown} error
 */
function explainMissing(path, error) {
  const failure = explainFailure(error, `${path} cannot be read`);
  if (failure.reason === "memory") return failure;
  return new ModelError("missing", `the bundle is not whole: ${path}: ${formatLine(error)}`, error);
}

/** @param {Uint8Array} bytes */
async function computeDigest(bytes) {
  const digest = await crypto.subtle.digest("SHA-256", /** @type {BufferSource} */ (bytes));
  return Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
