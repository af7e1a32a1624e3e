"use strict";
// Every text of the page, for a translator. {names} are filled in.

const TEXT = {
  // Beginning.
  starting: "Starting: unpacking the model …",
  checking: "Checking: three stored images …",
  checked: "Checked here: largest difference {difference} on {count} stored images. Ready.",
  otherJpeg: "This browser decodes JPEG files to slightly other pixels than those the scores were measured on: answers to photographs may differ a little.",
  cutOff: "This page is cut off: it was not copied or downloaded whole. Get it again.",
  changed: "The part “{part}” of this page was changed or damaged. Get it again.",
  noStreams: "This browser cannot unpack the page. It needs Chrome, Edge or Firefox of 2023 or newer, or Safari 16.4 or newer.",
  noSums: "This browser does not let a page opened from a file compute sums, so that it cannot be checked. Open it in Chrome, Edge or Firefox.",
  noEngine: "The engine does not start in this browser ({reason}). Open the page in a newest Chrome, Edge or Firefox.",
  otherPixels: "This browser changes the pixels of images (protection against fingerprinting does), so that answers would be wrong. Allow canvas reading for this page, or open it in another browser.",
  differs: "The answers to the stored images differ from the stored answers by {difference}, more than {tolerance}: this page does not answer here. Open it in another browser.",
  refused: "This page does not answer: {reason}",

  // What it is.
  classification: "Predicts one of {count} classes: {names}.",
  multilabel: "Predicts which of {count} labels apply: {names}.",
  regression: "Predicts {count} numbers: {names}.",
  ordinal: "Predicts one of {count} grades: {names}.",
  andMore: "{names} and {more} more",
  stays: "Images stay on this computer: the page cannot reach the network.",

  // Images in.
  drop: "Drop photographs here",
  choose: "or choose files, or paste an image",
  camera: "Take a photograph",
  working: "Looking at {name} ({done} of {count}) …",
  done: "Answered: {count} in all.",
  doneWithErrors: "Answered: {count} in all, {failed} not readable.",
  unknownKind: "not a JPEG, PNG, WebP, GIF, BMP or AVIF file",
  empty: "the file is empty",
  animated: "an animated WebP file, which is not supported",
  undecodable: "a damaged {kind} file, or one that this browser cannot decode",
  transparent: "it has half-transparent pixels, whose colors this browser does not give: save it without transparency",
  tooLarge: "{width} x {height} pixels are more than {maxPixels} in all",
  notFinite: "the model predicts a value that is not a number, which is not an answer",
  pasted: "pasted image {number}.png",

  // Answers out.
  answers: "Answers",
  image: "image",
  answer: "answer",
  probability: "probability",
  value: "value",
  nothing: "",
  set: "The image is one of (a set that holds the true class for {coverage} of new images): {names}",
  noSet: "no class is probable enough (sets hold the true class for {coverage} of new images)",
  orOne: "or {names}",
  notSure: "not probable enough",
  novel: "Unlike the training images (novelty {novelty}, above 1): do not rely on this answer.",
  novelShort: "unlike the training images",
  familiar: "Like the training images (novelty {novelty}, at most 1).",
  labels: "Labels above their thresholds: {names}",
  noLabels: "none of the labels",
  grade: "Grade: {name}",
  threshold: "from {threshold} on",
  interval: "{low} to {high} for {coverage} of new images",
  unreadable: "cannot be read: {reason}",
  ranked: "Answer for {name}",
  lookedAt: "Bright: where the model looked (its attention through all layers). It shows where, not why. What is cropped off is dark.",
  showLook: "Show where the model looked",

  // Downloads.
  csv: "Download CSV",
  json: "Download JSON",
  clear: "Remove all",
  semicolon: "A name holds a semicolon, which separates names in a cell of CSV: take JSON.",

  // The model card.
  card: "About this model",
  close: "Close",
  theModel: "The model",
  theCard: "Data, scores and license",
  noCard: "Nothing was stated: ask whoever gave you this page what the model was trained on, how good it is, and under which license it may be used.",
  theSums: "Sums (SHA-256)",
  theSumsNote: "They show damage, not who made the page: whoever changes the model can change its sum. Compare the model’s with the one that its makers publish.",
  theLicenses: "Licenses of the engine",
  task: "answers",
  names: "names",
  size: "sees",
  pixels: "{height} x {width} pixels, {channels}",
  colors: "in color",
  gray: "in gray",
  preparation: "preparation",
  weights: "weights",
  float32: "float32",
  int8: "int8 (rounded to eight bits: answers differ a little from the model they were made of)",
  coverage: "prediction sets",
  coverageOf: "{coverage} coverage, by {method}, from {images} images",
  margins: "intervals",
  marginsOf: "{coverage} coverage",
  novelty: "novelty",
  noveltyOf: "above 1: unlike the images of the training",
  seen: "images it was made with",
  writtenBy: "written by",
  engine: "engine",
};

/** A text of the table with its places filled in. */
function say(key, values = {}) {
  return TEXT[key].replace(/\{(\w+)\}/g, (_, name) => values[name]);
}
