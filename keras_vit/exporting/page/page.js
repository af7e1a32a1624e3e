"use strict";
// What the reader sees. Names of classes and files are only ever set as text.

const at = id => document.getElementById(id);
const percent = value => (100 * value).toFixed(value > 0.9995 && value < 1 ? 2 : 1) + " %";
const number = value => String(Math.abs(value) >= 1000 ? Math.round(value) : Number(value.toPrecision(4)));
const shortPercent = value => Number((100 * value).toPrecision(4)) + " %";
const made = (tag, text = "", className = "") => Object.assign(document.createElement(tag), {textContent: text, className});

const rows = [];  // {row, look, url, button}: an image's answer, and its line of the table
let model, waiting = [], busy = false, pastes = 0, shownRow, removals = 0;

function tell(place, text, className = "") {
  at(place).textContent = text;
  at(place).className = className;
}

async function begin() {
  document.querySelectorAll("[data-text]").forEach(element => { element.textContent = say(element.dataset.text); });
  tell("state", say("starting"));
  try {
    model = await PageModel.opened();
    const {task} = model.contract;
    document.title = at("title").textContent = model.about.name;
    const names = model.names.slice(0, 8).join(", "), more = model.names.length - 8;
    at("facts").textContent = say(task.kind, {count: model.names.length, names: more > 0 ? say("andMore", {names, more}) : names});
    at("number").textContent = say({regression: "value", multilabel: "nothing"}[task.kind] ?? "probability");
    fillCard();
    at("open-card").hidden = false;
    await model.start();
    tell("state", say("checking"));
    const {difference, sameJpeg, count, tolerance} = await model.check();
    const shown = {difference: difference ? difference.toExponential(0) : 0, count, tolerance};
    if (!(difference <= tolerance)) throw new Error(say("differs", shown));
    tell("state", say("checked", shown) + (sameJpeg ? "" : " " + say("otherJpeg")), "good");
    document.documentElement.dataset.verified = "true";
    at("main").hidden = false;
    if (inFolder) keepOffline();
  } catch (error) {
    tell("state", say("refused", {reason: error.message}), "wrong");
  }
}

/** Has the browser keep the page's files, once they have answered as they should. */
async function keepOffline() {
  try {
    await navigator.serviceWorker.register("worker.js");
    await navigator.serviceWorker.ready;
    tell("kept", say("kept"));
  } catch (error) {
    tell("kept", say("notKept"));
  }
}

// Images in.

function add(files) {
  if (at("main").hidden) return;  // not verified
  waiting.push(...files);
  if (!busy) work();
}

async function work() {
  busy = true;
  let done = 0;
  while (waiting.length) {
    const before = removals, file = waiting.shift(), name = file.name || say("pasted", {number: ++pastes});
    tell("status", say("working", {name, done: done + 1, count: done + 1 + waiting.length}));
    await new Promise(resolve => setTimeout(resolve));  // the page is drawn
    const bytes = await file.arrayBuffer().then(buffer => new Uint8Array(buffer), () => null);
    const answer = bytes ? await model.answer(name, bytes) : {row: {file: name, error: say("unopened")}, look: null};
    if (before !== removals) { done = 0; continue; }  // all were removed meanwhile
    const entry = {...answer, url: URL.createObjectURL(file)};
    rows.push(entry);
    addLine(entry);
    if (++done === 1) show(entry);
  }
  const failed = rows.filter(({row}) => row.error !== null).length;
  tell("status", rows.length ? say(failed ? "doneWithErrors" : "done", {count: rows.length, failed}) : "");
  busy = false;
}

// Answers out.

/** An answer in a few words, and its number, for the table. */
function inShort(row) {
  const [first] = row.predictions, unit = first.unit ? " " + first.unit : "";
  if ("labels" in row) return [row.labels.join(", ") || say("noLabels"), ""];
  if ("grade" in row) {
    const listed = row.predictions.find(entry => entry.grade === row.grade);  // not always among the most probable
    return [row.grade, listed ? percent(listed.probability) : ""];
  }
  if ("value" in first) {
    const rest = row.predictions.map(entry => `${entry.name} ${number(entry.value)}${entry.unit ? " " + entry.unit : ""}`);
    return row.predictions.length > 1 ? [rest.join(", "), ""] : [first.name, number(first.value) + unit];
  }
  return [first.class, percent(first.probability)];
}

function addLine(entry) {
  const {row, url} = entry, line = made("tr"), head = made("th"), button = made("button");
  const image = Object.assign(made("img"), {src: url, alt: "", loading: "lazy"});
  image.addEventListener("error", () => { image.hidden = true; });
  button.type = "button";
  head.scope = "row";
  button.append(image, made("span", row.file));
  button.addEventListener("click", () => { show(entry); at("one").scrollIntoView({block: "nearest"}); });
  head.append(button);
  line.append(head);
  if (row.error !== null) {
    line.append(Object.assign(made("td", say("unreadable", {reason: row.error}), "wrong"), {colSpan: 2}));
  } else {
    const [text, value] = inShort(row), cell = made("td", text);
    const others = row.set?.filter(name => name !== text).join(", ");
    if (others) cell.append(made("br"), made("small", say("orOne", {names: others})));
    if (row.set?.length === 0) cell.append(made("br"), made("small", say("notSure")));
    if (row.novel) cell.append(made("br"), made("span", say("novelShort"), "warn"));
    line.append(cell, made("td", value));
  }
  entry.button = button;
  at("rows").append(line);
  at("all").hidden = false;
  const splits = rows.some(({row}) => row.labels || row.set) && model.names.some(name => name.includes(";"));
  at("csv").disabled = splits;
  at("about-csv").textContent = splits ? say("semicolon") : "";
}

function show(entry) {
  const {row, url} = entry;
  shownRow?.button.removeAttribute("aria-current");
  shownRow = entry;
  entry.button.setAttribute("aria-current", "true");
  at("ranked").textContent = say("ranked", {name: row.file});
  at("image").src = url;
  at("image").alt = row.file;
  at("image").hidden = row.error !== null;
  const lines = [];
  if (row.error !== null) lines.push(made("p", say("unreadable", {reason: row.error}), "wrong"));
  if ("novelty" in row) {
    lines.push(made("p", say(row.novel ? "novel" : "familiar", {novelty: number(row.novelty)}), row.novel ? "warn" : ""));
  }
  if ("set" in row) {
    const coverage = shortPercent(model.task.sets.coverage);
    lines.push(made("p", say(row.set.length ? "set" : "noSet", {coverage, names: row.set.join(", ")})));
  }
  if ("labels" in row) lines.push(made("p", say("labels", {names: row.labels.join(", ") || say("noLabels")})));
  if ("grade" in row) lines.push(made("p", say("grade", {name: row.grade})));
  at("decided").replaceChildren(...lines);
  at("predictions").replaceChildren(...(row.predictions ?? []).map(ranked));
  showLook(entry);
  at("one").hidden = false;
}

/** A line of the answer: a name with its probability and bar, or with its number and interval. */
function ranked(entry) {
  const line = made("li"), name = made("span", entry.class ?? entry.label ?? entry.grade ?? entry.name);
  const value = made("span", "", "value");
  line.append(name, value);
  if ("value" in entry) {
    value.textContent = number(entry.value) + (entry.unit ? " " + entry.unit : "");
    if ("low" in entry) {
      const interval = {low: number(entry.low), high: number(entry.high), coverage: shortPercent(entry.coverage)};
      value.append(made("small", say("interval", interval)));
    }
    return line;
  }
  value.textContent = percent(entry.probability);
  const track = made("span", "", "track"), bar = made("span", "", "bar");
  bar.style.width = 100 * entry.probability + "%";
  line.append(track, bar);
  if ("threshold" in entry) {
    const mark = made("span", "", "mark");
    mark.style.left = 100 * entry.threshold + "%";
    value.append(made("small", say("threshold", {threshold: shortPercent(entry.threshold)})));
    line.append(mark);
  }
  return line;
}

/** Shades the parts of the image that contribute little attention, and all that is cropped off. */
function showLook({look}) {
  at("looking").hidden = !look;
  at("look").hidden = !look || !at("shown").checked;
  at("explained").textContent = look ? say("lookedAt") : "";
  if (!look) return;
  const {map, grid: [rows, columns], begin, target, size} = look, canvas = at("look");
  const sorted = map.slice().sort((a, b) => a - b), low = sorted[0];
  // One patch is often far above all others: it would leave the rest dark.
  const high = sorted[Math.floor(0.97 * (sorted.length - 1))];
  Object.assign(canvas, {width: columns, height: rows});
  const context = canvas.getContext("2d"), shade = context.createImageData(columns, rows);
  map.forEach((value, i) => { shade.data[4 * i + 3] = 190 * (1 - Math.min(1, (value - low) / (high - low || 1))); });
  context.putImageData(shade, 0, 0);
  ["top", "left"].forEach((side, axis) => { canvas.style[side] = 100 * begin[axis] / target[axis] + "%"; });
  ["height", "width"].forEach((side, axis) => { canvas.style[side] = 100 * size[axis] / target[axis] + "%"; });
}

function save(name, text, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], {type}));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

// The model card.

function fillCard() {
  const {contract, about, sums} = model, {task, evaluation} = contract;
  const section = (title, facts, note = "") => {
    const list = made("dl");
    for (const [name, value, className] of facts) list.append(made("dt", name), made("dd", value, className ?? ""));
    return [made("h3", say(title)), ...(note ? [made("p", note, "note")] : []), list];
  };
  const [height, width] = contract.image_size;
  const facts = [
    [say("task"), say(task.kind, {count: model.names.length, names: model.names.slice(0, 200).join(", ")})],
    [say("size"), say("pixels", {height, width, channels: say(contract.channels === 1 ? "gray" : "colors")})],
    [say("preparation"), Object.entries({mode: "crop", ...evaluation}).map(pair => pair.join(" ")).join(", ")],
    [say("weights"), say(contract.quantize ?? "float32")],
  ];
  if (task.sets) facts.push([say("coverage"), say("coverageOf", {...task.sets, coverage: shortPercent(task.sets.coverage)})]);
  if (task.margins?.length) facts.push([say("margins"), say("marginsOf", {coverage: shortPercent(task.coverage)})]);
  if (contract.novelty) facts.push([say("novelty"), say("noveltyOf")]);
  const seen = Object.entries(contract.seen_images?.counts ?? {});
  if (seen.length) facts.push([say("seen"), seen.map(([use, count]) => `${count} ${use}`).join(", ")]);
  facts.push([say("writtenBy"), "keras_vit " + contract.version], [say("engine"), say("onProcessor", about)]);
  const card = Object.entries(about.card), license = made("details");
  license.append(made("summary", about.engine), made("pre", about.license));
  at("card-body").replaceChildren(
    ...section("theModel", facts),
    ...section("theCard", card, card.length ? "" : say("noCard")),
    ...section("theSums", Object.entries({[say("theModel")]: about.graph_sum, ...sums}).map(pair => [...pair, "sum"]), say("theSumsNote")),
    made("h3", say("theLicenses")), license,
  );
}

at("open-card").addEventListener("click", () => at("card").showModal());
at("shown").addEventListener("change", () => showLook(shownRow));
at("csv").addEventListener("click", () => save("answers.csv", asCsv(rows.map(({row}) => row)), "text/csv"));
at("json").addEventListener("click", () => save("answers.json", JSON.stringify(rows.map(({row}) => row), null, 1), "application/json"));
at("clear").addEventListener("click", () => {
  waiting.length = 0;
  removals++;
  rows.splice(0).forEach(({url}) => URL.revokeObjectURL(url));
  at("rows").replaceChildren();
  at("one").hidden = at("all").hidden = true;
  tell("status", "");
  at("file").focus();
});
for (const id of ["file", "photo"]) {
  at(id).addEventListener("change", () => {
    add([...at(id).files]);
    at(id).value = "";  // the same file can be chosen again
  });
}
document.addEventListener("dragover", event => {
  event.preventDefault();
  at("drop").classList.add("over");
});
document.addEventListener("dragleave", () => at("drop").classList.remove("over"));
document.addEventListener("drop", event => {
  event.preventDefault();
  at("drop").classList.remove("over");
  add([...event.dataTransfer.files]);
});
document.addEventListener("paste", event => add([...event.clipboardData.files]));
document.addEventListener("DOMContentLoaded", begin);
