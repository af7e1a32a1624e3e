"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const cards = [...document.querySelectorAll(".photo")];
const rowsByName = new Map(Object.entries(data.photos).map(([row, photo]) => [photo.name, row]));
const find = id => document.getElementById(id);

// The browser keeps what is decided, by name and digest, where it is allowed to.
function keep(value) {
  try { localStorage.setItem(data.key, JSON.stringify(value)); } catch { /* not allowed here */ }
}

function kept(nothing) {
  try { return JSON.parse(localStorage.getItem(data.key)) ?? nothing; } catch { return nothing; }
}

// An apostrophe in front of what a spreadsheet would compute; keras-vit removes it.
const quoted = text => '"' + text.replace(/^(?='*[=+\-@\t\r\n])/, "'").replaceAll('"', '""') + '"';

function download(name, rows) {
  const lines = [data.columns, ...rows].map(cells => cells.map(quoted).join(","));
  const file = new Blob([lines.join("\n") + "\n"], { type: "text/csv" });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(file);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
