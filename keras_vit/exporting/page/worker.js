"use strict";
// Keeps the files of one export of a page, for when there is no network: all of them, by their
// SHA-256 sums, or none. Those of a later export take their place when no tab has the page open, so
// that a page never gets parts of another export. Its cache has the folder in its name: all pages of
// a server share one store.
const FILES = $files;
const FOLDER = self.registration.scope, OURS = "keras_vit " + FOLDER + " ", KEPT = OURS + "$sum";

async function keep(cache, name) {
  const answer = await fetch(name, {cache: "no-cache"}), bytes = await answer.arrayBuffer();
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  const sum = Array.from(digest, byte => byte.toString(16).padStart(2, "0")).join("");
  if (sum !== FILES[name]) throw new Error(name + " is not of this export");
  await cache.put(name, new Response(bytes, {headers: {"Content-Type": answer.headers.get("Content-Type") ?? ""}}));
}

self.addEventListener("install", event => event.waitUntil(
  caches.open(KEPT).then(cache => Promise.all(Object.keys(FILES).map(name => keep(cache, name))))));

self.addEventListener("activate", event => event.waitUntil(caches.keys().then(names => Promise.all(
  names.filter(name => name.startsWith(OURS) && name !== KEPT).map(name => caches.delete(name))))));

self.addEventListener("fetch", event => {
  const url = event.request.url.split(/[?#]/)[0];
  const name = url === FOLDER || url === FOLDER + "index.html" ? "./" : url.slice(FOLDER.length);
  if (event.request.method !== "GET" || !url.startsWith(FOLDER) || !Object.hasOwn(FILES, name)) return;
  event.respondWith(caches.open(KEPT).then(cache => cache.match(name)).then(kept => kept ?? fetch(event.request)));
});
