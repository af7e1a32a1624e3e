"use strict";
// The parts of the page, checked and unpacked; the model in its engine; answers as rows.

// Of the folder form, on a server: its large parts are files beside it.
const inFolder = document.querySelector("link[rel=manifest]") !== null;

async function fileBeside(file) {
  try {
    const answer = await fetch(file, {cache: "no-cache"});  // one of an earlier export would not fit
    if (!answer.ok) throw new Error(answer.status);
    return new Uint8Array(await answer.arrayBuffer());
  } catch (error) {
    throw new Error(say("noFile", {file, reason: error.message}));
  }
}

/** A part of the page, by its name, as bytes: its sum is compared before it is unpacked. */
async function part(name, sums) {
  const element = document.getElementById("part-" + name);
  if (!(element || inFolder) || !(name in sums)) throw new Error(say("cutOff"));
  let packed = element ? null : await fileBeside(name + ".bin");
  try {
    packed ??= bytesOf(element.textContent);
  } catch (error) {
    throw new Error(say("changed", {part: name}));
  }
  element?.remove();  // its text is as large as the model
  if (hex(await crypto.subtle.digest("SHA-256", packed)) !== sums[name]) throw new Error(say("changed", {part: name}));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

const hex = buffer => Array.from(new Uint8Array(buffer), byte => byte.toString(16).padStart(2, "0")).join("");
const asText = bytes => new TextDecoder().decode(bytes);

/** The bytes of base64, a stretch at a time: a string of hundreds of megabytes is not made twice. */
function bytesOf(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const bytes = new Uint8Array(Math.floor(text.length / 4) * 3 - (text.match(/=*$/)[0].length)), step = 2 ** 20;
  for (let at = 0, to = 0; at < text.length; at += step) {
    const binary = atob(text.slice(at, at + step));
    for (let i = 0; i < binary.length; i++) bytes[to++] = binary.charCodeAt(i);
  }
  return bytes;
}

/** The model of the page. */
class PageModel {
  static async opened() {
    if (typeof DecompressionStream === "undefined") throw new Error(say("noStreams"));
    if (!globalThis.crypto?.subtle) throw new Error(say("noSums"));
    const listed = document.getElementById("sums");
    if (!listed) throw new Error(say("cutOff"));
    const model = new PageModel();
    try {
      model.sums = JSON.parse(listed.textContent);
    } catch (error) {
      throw new Error(say("changed", {part: "sums"}));
    }
    for (const name of ["contract", "about", "checks"]) model[name] = JSON.parse(asText(await part(name, model.sums)));
    const {task} = model.contract;
    model.task = task;
    model.names = task.names.length ? task.names : Array.from({length: task.size}, (_, i) => String(i));
    return model;
  }

  /** Starts the engine, and runs the stored images: an Error says why the page does not answer. */
  async start() {
    const graph = await part("graph", this.sums), wasm = await part("wasm", this.sums);
    const code = await part("engine", this.sums);
    try {
      const url = URL.createObjectURL(new Blob([code], {type: "text/javascript"}));
      const engine = await import(url);
      URL.revokeObjectURL(url);
      engine.env.wasm.wasmBinary = wasm.buffer;
      engine.env.wasm.numThreads = 1;  // more need headers, which a file does not have
      engine.env.logLevel = "error";
      this.Tensor = engine.Tensor;
      this.session = await engine.InferenceSession.create(graph, {executionProviders: ["wasm"]});
    } catch (error) {
      throw new Error(say("noEngine", {reason: error.message ?? error}));
    }
  }

  /**
   * The largest difference from the stored answers, and whether JPEG files have the same pixels.
   * Of an image with transparency the pixels alone are compared, which `decode` then knows.
   */
  async check() {
    const same = {PNG: true, JPEG: true, alpha: true};
    let difference = 0, count = 0;
    for (const {kind, file, pixels, outputs: stored} of this.checks.images) {
      const image = await decode(bytesOf(file), this.contract.channels, Infinity).catch(() => ({data: new Uint8Array()}));
      same[kind] &&= hex(await crypto.subtle.digest("SHA-256", image.data)) === pixels;
      if (!same.PNG) throw new Error(say("otherPixels"));
      if (!same[kind] || kind === "alpha") continue;
      const {outputs} = await this.run(image);
      for (const [name, expected] of Object.entries(stored)) {
        expected.forEach((value, i) => {
          const scale = this.checks.scale[name]?.[i] ?? Math.max(1, Math.abs(value));
          const off = Math.abs(outputs[name][i] - value) / scale;
          difference = Math.max(difference, Number.isNaN(off) ? Infinity : off);
        });
      }
      count++;
    }
    readsAlpha = same.alpha;
    return {difference, sameJpeg: same.JPEG, count, tolerance: this.checks.tolerance};
  }

  /** The named outputs for an image, as arrays, and where the model looked. */
  async run(image) {
    const {image_size: size, channels, evaluation} = this.contract;
    const {pixels, begin, target} = prepare(image, size, evaluation);
    const images = new this.Tensor("float32", pixels, [1, ...size, channels]);
    const tensors = await this.session.run({images}), outputs = {};
    for (const [name, tensor] of Object.entries(tensors)) outputs[name] = Array.from(tensor.data);
    const grid = tensors.attention?.dims.slice(1) ?? [];  // of patches, where they cover the image
    const look = grid.length && grid.every((n, i) => size[i] % n === 0) ? {map: outputs.attention, grid, begin, target, size} : null;
    return {outputs, look};
  }

  /** The row of an image file, as JSON of `keras-vit predict` has it, and where the model looked. */
  async answer(name, bytes) {
    try {
      const image = await decode(bytes, this.contract.channels, this.contract.max_pixels);
      const {outputs, look} = await this.run(image);
      if (![...outputs[this.checks.answers], outputs.novelty?.[0] ?? 0].every(Number.isFinite)) throw new Error(say("notFinite"));
      return {row: {file: name, error: null, ...this.described(outputs)}, look};
    } catch (error) {
      return {row: {file: name, error: error.message}, look: null};
    }
  }

  described(outputs) {
    const {task, names} = this, answers = outputs[this.checks.answers], row = {};
    if (outputs.novelty) Object.assign(row, {novel: outputs.novelty[0] > 1, novelty: outputs.novelty[0]});
    // The most probable first, and of equal ones the first.
    const order = answers.map((_, i) => i).sort((a, b) => answers[b] - answers[a] || a - b);
    const ranked = order.slice(0, this.contract.top_k);
    if (task.kind === "classification") {
      if (outputs.in_set) row.set = order.filter(i => outputs.in_set[i]).map(i => names[i]);
      row.predictions = ranked.map(i => ({class: names[i], probability: answers[i]}));
    } else if (task.kind === "multilabel") {
      row.labels = names.filter((_, i) => outputs.labels[i]);
      row.predictions = ranked.map(i => ({label: names[i], probability: answers[i], threshold: task.thresholds[i]}));
    } else if (task.kind === "ordinal") {
      row.grade = names[outputs.grade[0]];
      row.predictions = ranked.map(i => ({grade: names[i], probability: answers[i]}));
    } else {
      row.predictions = answers.map((value, i) => ({
        name: names[i], value, ...(task.units[i] ? {unit: task.units[i]} : {}),
        ...(task.margins?.length ? {low: value - task.margins[i], high: value + task.margins[i], coverage: task.coverage} : {}),
      }));
    }
    return row;
  }
}

/** Rows as CSV of `keras-vit predict`: texts in quotes, and none that a spreadsheet would compute. */
function asCsv(rows) {
  const good = rows.find(row => row.error === null) ?? {predictions: []};
  const decided = Object.keys(good).filter(key => !["file", "error", "predictions"].includes(key));
  const columnsOf = predictions => predictions.flatMap((entry, i) => Object.keys(entry).filter(key => key !== "name")
    .map(key => [`${key}_${entry.name ?? i + 1}`, entry[key]]));
  const columns = ["file", "error", ...decided, ...columnsOf(good.predictions).map(([column]) => column)];
  const cell = value => {
    if (typeof value === "number") return String(value);
    const text = Array.isArray(value) ? value.join(";") : String(value ?? "");
    const formula = /^'*[=+\-@\t\r\n]/.test(text) && !/^[+-][\d.]+([eE][+-]?\d+)?$/.test(text);
    return `"${(formula ? "'" : "") + text.replaceAll('"', '""')}"`;
  };
  const lines = rows.map(row => {
    const cells = {file: row.file, error: row.error, ...Object.fromEntries(decided.map(key => [key, row[key]])),
      ...Object.fromEntries(columnsOf(row.predictions ?? []))};
    return columns.map(column => cell(cells[column]));
  });
  return [columns.map(cell), ...lines].map(cells => cells.join(",") + "\n").join("");
}
