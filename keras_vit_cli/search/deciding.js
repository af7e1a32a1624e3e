"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const cards = [...document.querySelectorAll(".photo")];
const rowsByName = new Map(Object.entries(data.photos).map(([row, photo]) => [photo.name, row]));
const find = id => document.getElementById(id);

// The browser keeps what is decided, by name and digest, where it is allowed to.
let unkept = false;
function tellUnkept(value) {
  unkept = value;
  find("kept").textContent = value ? "This browser does not keep what you decide: download it before you close." : "";
}
function keep(value) {
  try {
    localStorage.setItem(data.key, JSON.stringify(value));
    tellUnkept(false);
  } catch { tellUnkept(true); }
}
addEventListener("beforeunload", event => { if (unkept) event.preventDefault(); });

// What is stored, each entry behind its name, with what was changed on this page in its place:
// another page or tab may have stored the rest.
const changed = new Set();  // rows
function merged(stored, own) {
  const names = new Set([...changed].map(row => data.photos[row].name));
  return [...stored.filter(([name]) => !names.has(name)), ...own.filter(([name]) => names.has(name))];
}

function kept(nothing) {
  try { return JSON.parse(localStorage.getItem(data.key)) ?? nothing; } catch { return nothing; }
}

// An apostrophe in front of what a spreadsheet would compute, not of numbers; keras-vit removes it.
const formula = /^(?='*[=+\-@\t\r\n])(?![+-][\d.]+([eE][+-]?\d+)?$)/;
const quoted = text => '"' + text.replace(formula, "'").replaceAll('"', '""') + '"';

function download(name, rows) {
  const lines = [data.columns, ...rows].map(cells => cells.map(quoted).join(","));
  const file = new Blob([lines.join("\n") + "\n"], { type: "text/csv" });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(file);
  link.download = name;
  link.click();
  tellUnkept(false);
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
