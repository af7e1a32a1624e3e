"use strict";
// Image files to the pixels that the model sees: the rules of keras_vit.data in JavaScript. Pixels
// are {data, height, width, channels}, row by row.

const wordAt = (bytes, from, length) => String.fromCharCode(...bytes.subarray(from, from + length));

/** What a file is by its first bytes; "" for what `keras-vit predict` or browsers do not read. */
function kindOf(bytes) {
  const kinds = {JPEG: [0, "\xff\xd8\xff"], PNG: [0, "\x89PNG\r\n\x1a\n"], GIF: [0, "GIF8"],
    BMP: [0, "BM"], WEBP: [8, "WEBP"], AVIF: [4, "ftypavif"]};
  return Object.keys(kinds).find(kind => wordAt(bytes, kinds[kind][0], kinds[kind][1].length) === kinds[kind][1]) ?? "";
}

/** The orientation, 1 to 8, of an EXIF block; 1 where it has none. */
function orientationOf(block) {
  const exif = wordAt(block, 0, 4) === "Exif" ? block.subarray(6) : block;
  const view = new DataView(exif.buffer, exif.byteOffset, exif.byteLength);
  try {
    const little = view.getUint16(0) === 0x4949, first = view.getUint32(4, little);
    for (let i = 0; i < view.getUint16(first, little); i++) {
      const at = first + 2 + 12 * i;
      if (view.getUint16(at, little) !== 0x0112) continue;
      const value = view.getUint16(at + 2, little) === 4 ? view.getUint32(at + 8, little) : view.getUint16(at + 8, little);
      return value >= 1 && value <= 8 ? value : 1;
    }
  } catch (error) { /* cut off: upright, as in Python */ }
  return 1;
}

/** Whether the first image of a file is there to its end, where a browser (Firefox) would fill up the rest. */
function isWhole(bytes, kind) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  try {
    if (kind === "JPEG") {  // a thumbnail before the scans has an end of its own
      let at = 2;
      while (view.getUint8(at) === 0xff && view.getUint8(at + 1) !== 0xda) {
        at += view.getUint8(at + 1) === 0xff ? 1 : 2 + view.getUint16(at + 2);
      }
      while (view.getUint16(at) !== 0xffd9) at++;
    } else if (kind === "PNG") {
      let at = 8;
      while (wordAt(bytes, at + 4, 4) !== "IEND") at += 12 + view.getUint32(at);
    } else if (kind === "GIF") {
      const table = at => view.getUint8(at) & 128 ? 3 << (view.getUint8(at) & 7) + 1 : 0;
      let at = 13 + table(10);
      while (view.getUint8(at) === 0x21) at = afterBlocks(view, at + 2);
      afterBlocks(view, at + 11 + table(at + 9));
    } else if (kind === "BMP") {
      const start = view.getUint32(10, true);
      const isOld = view.getUint32(14, true) === 12;  // of OS/2
      const [width, height, bits] = isOld ? [18, 20, 24].map(at => view.getUint16(at, true))
        : [view.getInt32(18, true), view.getInt32(22, true), view.getUint16(28, true)];
      const isPacked = !isOld && [1, 2].includes(view.getUint32(30, true));
      const length = isPacked ? view.getUint32(34, true) : Math.ceil(width * bits / 32) * 4 * Math.abs(height);
      return bytes.length >= start + length;
    }
    return true;
  } catch (error) { return false; }  // beyond the end
}

/** The place after the blocks of a GIF, each behind its length, the last of length 0. */
function afterBlocks(view, at) {
  while (view.getUint8(at)) at += 1 + view.getUint8(at);
  return at + 1;
}

/**
 * A file without what browsers treat differently, and its orientation. Color profiles and gamma,
 * which a browser would apply and Pillow does not, orientation, and transparency where it lies
 * beside the colors are cut out of the file: then no option of a decoder is relied on.
 */
function bare(bytes, kind) {
  if (!isWhole(bytes, kind)) throw new Error(say("undecodable", {kind}));
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength), parts = [];
  let orientation = 0;
  const seen = block => { orientation ||= orientationOf(block); };
  const keep = (from, to) => parts.push(bytes.subarray(from, to));
  if (kind === "JPEG") {
    keep(0, 2);
    let at = 2;
    while (at + 4 <= bytes.length && bytes[at] === 0xff && bytes[at + 1] !== 0xda) {
      if (bytes[at + 1] === 0xff) { at++; continue; }
      const end = at + 2 + view.getUint16(at + 2), marker = bytes[at + 1];
      if (marker === 0xe1 && wordAt(bytes, at + 4, 6) === "Exif\0\0") seen(bytes.subarray(at + 4, end));
      if (marker !== 0xe1 && marker !== 0xe2) keep(at, end);  // EXIF and XMP; color profile
      at = end;
    }
    keep(at, bytes.length);
  } else if (kind === "PNG") {
    keep(0, 8);
    for (let at = 8; at + 12 <= bytes.length;) {
      const end = at + 12 + view.getUint32(at), type = wordAt(bytes, at + 4, 4);
      if (type === "eXIf") seen(bytes.subarray(at + 8, end - 4));
      if (["IHDR", "PLTE", "IDAT", "IEND"].includes(type)) keep(at, end);
      at = end;
    }
  } else if (kind === "WEBP") {
    keep(0, 12);
    for (let at = 12; at + 8 <= bytes.length;) {
      const size = view.getUint32(at + 4, true), end = at + 8 + size + size % 2, type = wordAt(bytes, at, 4);
      if (type === "EXIF") seen(bytes.subarray(at + 8, at + 8 + size));
      if (type === "VP8X" && bytes[at + 8] & 2) throw new Error(say("animated"));
      if (type === "VP8 " || type === "VP8L") keep(at, end);
      at = end;
    }
    const size = parts.reduce((sum, part) => sum + part.length, -8);
    parts[0] = parts[0].slice();
    new DataView(parts[0].buffer).setUint32(4, size, true);
  } else keep(0, bytes.length);
  return {parts, orientation: orientation || 1};
}

let readsAlpha = true;  // until a stored image has shown that this browser does not

/** RGBA of an image with half-transparent pixels, whose colors a 2-D canvas would round or lose. */
function colorsBehindAlpha(bitmap) {
  const {width, height} = bitmap, gl = document.createElement("canvas").getContext("webgl");
  if (!gl || !readsAlpha) throw new Error(say("transparent"));
  gl.bindTexture(gl.TEXTURE_2D, gl.createTexture());
  gl.pixelStorei(gl.UNPACK_PREMULTIPLY_ALPHA_WEBGL, false);
  gl.pixelStorei(gl.UNPACK_COLORSPACE_CONVERSION_WEBGL, gl.NONE);
  gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA, gl.RGBA, gl.UNSIGNED_BYTE, bitmap);
  gl.bindFramebuffer(gl.FRAMEBUFFER, gl.createFramebuffer());
  gl.framebufferTexture2D(gl.FRAMEBUFFER, gl.COLOR_ATTACHMENT0, gl.TEXTURE_2D, gl.getParameter(gl.TEXTURE_BINDING_2D), 0);
  const data = new Uint8Array(width * height * 4);
  const whole = gl.checkFramebufferStatus(gl.FRAMEBUFFER) === gl.FRAMEBUFFER_COMPLETE;
  if (whole) gl.readPixels(0, 0, width, height, gl.RGBA, gl.UNSIGNED_BYTE, data);
  const failed = !whole || gl.getError() !== gl.NO_ERROR;
  gl.getExtension("WEBGL_lose_context")?.loseContext();
  if (failed) throw new Error(say("transparent"));
  return data;
}

/** Upright pixels of one or three channels, uint8, of RGBA as it is stored in the file. */
function upright(data, width, height, orientation, channels) {
  const turned = orientation > 4, rows = turned ? width : height, columns = turned ? height : width;
  const mirrored = [2, 3, 6, 7].includes(orientation), upsideDown = [3, 4, 7, 8].includes(orientation);
  const out = new Uint8Array(rows * columns * channels);
  const gray = [0.2989, 0.587, 0.114].map(weight => Math.fround(Math.fround(weight) * Math.fround(255.5 / 255)));
  for (let y = 0, at = 0; y < rows; y++) {
    const row = upsideDown ? rows - 1 - y : y;
    for (let x = 0; x < columns; x++) {
      const column = mirrored ? columns - 1 - x : x;
      const from = 4 * (turned ? column * width + row : row * width + column);
      if (channels === 1) {
        out[at++] = Math.fround(data[from] * gray[0] + data[from + 1] * gray[1] + data[from + 2] * gray[2]);
      } else for (let c = 0; c < 3; c++) out[at++] = data[from + c];
    }
  }
  return {data: out, height: rows, width: columns, channels};
}

/** The upright uint8 pixels of an image file. */
async function decode(bytes, channels, maxPixels) {
  const kind = kindOf(bytes);
  if (!kind) throw new Error(say(bytes.length ? "unknownKind" : "empty"));
  const {parts, orientation} = bare(bytes, kind);
  // In one piece: Firefox looks at the first of several alone.
  const blob = new Blob([await new Blob(parts).arrayBuffer()], {type: "image/" + kind.toLowerCase()});
  let bitmap;
  try {
    bitmap = await createImageBitmap(blob, {colorSpaceConversion: "none", premultiplyAlpha: "none"});
  } catch (error) {
    throw new Error(say("undecodable", {kind}));
  }
  const {width, height} = bitmap;
  if (width * height > maxPixels) throw new Error(say("tooLarge", {width, height, maxPixels}));
  const canvas = Object.assign(document.createElement("canvas"), {width, height});
  const context = canvas.getContext("2d", {willReadFrequently: true, colorSpace: "srgb"});
  context.drawImage(bitmap, 0, 0);
  let data = context.getImageData(0, 0, width, height).data;
  for (let i = 3; i < data.length && kind !== "GIF"; i += 4) {  // of a GIF it is 0 or 1: black
    if (data[i] !== 255) { data = colorsBehindAlpha(bitmap); break; }
  }
  bitmap.close();
  canvas.width = canvas.height = 0;  // gives its memory back, which Safari is short of
  return upright(data, width, height, orientation, channels);
}

// Pillow's filters: how far they reach, and their curves.
const FILTERS = {
  bilinear: [1, x => Math.max(0, 1 - Math.abs(x))],
  bicubic: [2, x => { x = Math.abs(x); return x < 1 ? (1.5 * x - 2.5) * x * x + 1 : x < 2 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0; }],
  lanczos: [3, x => x < -3 || x >= 3 ? 0 : sinc(x) * sinc(x / 3)],
};
const sinc = x => x === 0 ? 1 : Math.sin(x * Math.PI) / (x * Math.PI);

/** For each new pixel where the old ones begin that it is made of, and their weights, as Pillow's. */
function antialiased(length, target, filter) {
  const [reach, curve] = FILTERS[filter], scale = length / target, wide = Math.max(scale, 1);
  return i => {
    const center = (i + 0.5) * scale;
    const first = Math.max(0, Math.trunc(center - reach * wide + 0.5));
    const end = Math.min(length, Math.trunc(center + reach * wide + 0.5));
    const weights = Array.from({length: end - first}, (_, k) => curve((k + first - center + 0.5) / wide));
    const sum = weights.reduce((a, b) => a + b, 0);
    return {first, weights: weights.map(weight => weight / sum)};
  };
}

/** The same of two neighbors, without antialiasing, in float32 as TensorFlow computes places. */
function nearest(length, target) {
  const f = Math.fround, scale = f(length / target);
  return i => {
    const place = f(f((i + 0.5) * scale) - 0.5), before = Math.floor(place);
    const first = Math.max(before, 0), after = Math.min(Math.ceil(place), length - 1);
    return {first, weights: after > first ? [1 - f(place - before), f(place - before)] : [1]};
  };
}

/** Resizes along rows (axis 0) or columns; `bytes` rounds as Pillow does with bytes. */
function along(image, axis, taps, begin, count, bytes) {
  const {height, width, channels, data} = image;
  const [outer, length, inner] = axis ? [height, width, channels] : [1, height, width * channels];
  const out = new (bytes ? Uint8ClampedArray : Float32Array)(outer * count * inner);
  for (let j = 0; j < count; j++) {
    const tap = taps(begin + j), first = tap.first;
    // Fixed point, of 22 bits.
    const weights = bytes ? tap.weights.map(w => Math.trunc(w * 2 ** 22 + (w < 0 ? -0.5 : 0.5))) : tap.weights;
    for (let o = 0; o < outer; o++) {
      const from = (o * length + first) * inner, to = (o * count + j) * inner;
      for (let i = 0; i < inner; i++) {
        let sum = bytes ? 2 ** 21 : 0;
        for (let k = 0; k < weights.length; k++) sum += data[from + k * inner + i] * weights[k];
        out[to + i] = bytes ? Math.floor(sum / 2 ** 22) : sum;
      }
    }
  }
  return {...image, data: out, [axis ? "width" : "height"]: count};
}

/** Resizes to `target` and cuts out `size` from `begin` on, all of (height, width). */
function resizedPart(image, target, begin, size, taps, bytes = false) {
  const lengths = [image.height, image.width];
  const [rows, columns] = lengths.map((length, axis) => length - target[axis]);
  // As Pillow 13 chooses; which axis is first changes the rounding of bytes alone.
  const axes = bytes && rows > Math.max(2 * columns, 0) ? [0, 1] : [1, 0];
  for (const axis of axes) {
    const isSame = lengths[axis] === target[axis];
    const own = isSame ? i => ({first: i, weights: [1]}) : taps(lengths[axis], target[axis]);
    image = along(image, axis, own, begin[axis], size[axis], bytes);
  }
  return image.data;
}

const roundEven = x => Math.abs(x % 1) === 0.5 ? 2 * Math.round(x / 2) : Math.round(x);
const both = change => [0, 1].map(change);

/**
 * The float32 input of the model, as `keras_vit.data.evaluation_image` makes it; and the part of
 * the image that it shows, from `begin` on in an image of `target` pixels.
 */
function prepare(image, size, transform) {
  const {mode = "crop", crop_fraction: part = 0.875, interpolation = "bicubic"} = transform;
  const f = Math.fround, sides = [image.height, image.width];
  // Of a strip, its center alone is resized: `part_to_resize` of Python.
  const most = 16 * Math.ceil(Math.max(...size) / Math.min(...size)) * Math.min(...sides);
  const ends = both(i => /stretch|squash/.test(mode) ? 0 : Math.floor(Math.max(sides[i] - most, 0) / 2));
  const shape = both(i => sides[i] - 2 * ends[i]), own = i => ({first: i, weights: [1]});
  for (const axis of [0, 1]) if (ends[axis]) image = along(image, axis, own, ends[axis], shape[axis], true);
  const cropped = (pixels, begin, target) => ({
    pixels: Float32Array.from(pixels),
    begin: both(i => begin[i] + ends[i] * target[i] / shape[i]),
    target: both(i => sides[i] * target[i] / shape[i]),
  });
  const filtered = name => (length, target) => antialiased(length, target, name);
  const whole = taps => ({pixels: resizedPart(image, size, [0, 0], size, taps), begin: [0, 0], target: size});
  if (mode === "stretch") return whole(nearest);
  if (mode === "stretch_bicubic") {
    const seen = whole(filtered("bicubic"));
    return {...seen, pixels: seen.pixels.map(x => Math.min(Math.max(x, 0), 255))};  // it overshoots
  }
  if (mode === "crop") {
    if (shape[0] === size[0] && shape[1] === size[1]) return {pixels: Float32Array.from(image.data), begin: [0, 0], target: size};
    const ratio = Math.max(...both(i => f(roundEven(size[i] / part) / shape[i])));
    const target = both(i => Math.max(roundEven(f(shape[i] * ratio)), size[i]));
    const begin = both(i => Math.floor((target[i] - size[i]) / 2));
    return cropped(resizedPart(image, target, begin, size, filtered("bilinear")), begin, target);
  }
  let target = size.map(side => Math.floor(side / part + 1e-6));
  if (mode === "timm_center" || mode === "huggingface_crop") {  // these keep the aspect ratio
    const small = Math.min(...shape), ratio = Math.min(...both(i => shape[i] / target[i]));
    target = size[0] === size[1] ? both(i => Math.floor(shape[i] * target[i] / small))
      : both(i => Math.max(roundEven(shape[i] / ratio), size[i]));
  }
  const round = mode.startsWith("timm") ? roundEven : Math.floor;
  const begin = both(i => round((target[i] - size[i]) / 2));
  return cropped(resizedPart(image, target, begin, size, filtered(interpolation), true), begin, target);
}
