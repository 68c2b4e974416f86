// What pages do in the browser where it runs scripts: make the key pair of a WireGuard device, whose
// private half never leaves this page, put it into the configuration, and draw that as a QR code;
// and look again while a login waits for its approval. Every page works without.
"use strict";

// X25519 (RFC 7748), for browsers whose WebCrypto has none. Only the user's own device sees how long
// it takes.
const P = (1n << 255n) - 19n;
const mod = (a) => ((a % P) + P) % P;
const power = (base, exponent) => {
  let result = 1n;
  for (; exponent > 0n; exponent >>= 1n) {
    if (exponent & 1n) result = mod(result * base);
    base = mod(base * base);
  }
  return result;
};
const publicKey = (secret) => {
  let k = 0n;
  for (let i = 31; i >= 0; i--) k = (k << 8n) | BigInt(secret[i]);
  let [x2, z2, x3, z3, swap] = [1n, 0n, 9n, 1n, 0n];
  for (let t = 254n; t >= 0n; t--) {
    const bit = (k >> t) & 1n;
    if (bit !== swap) [x2, z2, x3, z3] = [x3, z3, x2, z2];
    swap = bit;
    const [a, b, c, d] = [x2 + z2, x2 - z2, x3 + z3, x3 - z3];
    const [da, cb, aa, bb] = [mod(d * a), mod(c * b), mod(a * a), mod(b * b)];
    const e = aa - bb;
    x3 = mod((da + cb) ** 2n);
    z3 = mod(9n * (da - cb) ** 2n);
    x2 = mod(aa * bb);
    z2 = mod(e * (aa + 121665n * e));
  }
  if (swap) [x2, z2] = [x3, z3];
  let x = mod(x2 * power(z2, P - 2n));
  return Uint8Array.from({ length: 32 }, () => {
    const byte = Number(x & 255n);
    x >>= 8n;
    return byte;
  });
};
const base64 = (bytes) => btoa(String.fromCharCode(...bytes));
const fromUrl = (text) => Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (c) => c.charCodeAt(0));

// A key pair as `wg genkey` and `wg pubkey` write it.
const keyPair = async () => {
  try {
    const pair = await crypto.subtle.generateKey({ name: "X25519" }, true, ["deriveBits"]);
    const { d, x } = await crypto.subtle.exportKey("jwk", pair.privateKey);
    const secret = fromUrl(d);
    secret[0] &= 248;
    secret[31] = (secret[31] & 127) | 64;
    return { secret: base64(secret), public: base64(fromUrl(x)) };
  } catch {
    const secret = crypto.getRandomValues(new Uint8Array(32));
    secret[0] &= 248;
    secret[31] = (secret[31] & 127) | 64;
    return { secret: base64(secret), public: base64(publicKey(secret)) };
  }
};

// QR codes (ISO/IEC 18004): bytes, error correction of level L, the smallest version that fits.
const EC_BYTES = [7, 10, 15, 20, 26, 18, 20, 24, 30, 18, 20, 24, 26, 30, 22, 24, 28, 30, 28, 28, 28, 28, 30, 30, 26, 28, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30];
const BLOCKS = [1, 1, 1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 4, 4, 6, 6, 6, 6, 7, 8, 8, 9, 9, 10, 12, 12, 12, 13, 14, 15, 16, 17, 18, 19, 19, 20, 21, 22, 24, 25];
const allBytes = (version) => {
  let bits = (16 * version + 128) * version + 64;
  if (version > 1) {
    const patterns = Math.floor(version / 7) + 2;
    bits -= (25 * patterns - 10) * patterns - 55;
    if (version > 6) bits -= 36;
  }
  return bits >> 3;
};
const times = (a, b) => {
  let product = 0;
  for (let i = 7; i >= 0; i--) {
    product = (product << 1) ^ ((product >> 7) * 0x11d);
    if ((b >> i) & 1) product ^= a;
  }
  return product;
};
const remainder = (data, degree) => {
  const divisor = new Uint8Array(degree);
  divisor[degree - 1] = 1;
  for (let i = 0, root = 1; i < degree; i++, root = times(root, 2)) {
    for (let j = 0; j < degree; j++) divisor[j] = times(divisor[j], root) ^ (j + 1 < degree ? divisor[j + 1] : 0);
  }
  const rest = new Uint8Array(degree);
  for (const byte of data) {
    const factor = byte ^ rest[0];
    rest.copyWithin(0, 1);
    rest[degree - 1] = 0;
    for (let j = 0; j < degree; j++) rest[j] ^= times(divisor[j], factor);
  }
  return rest;
};
const codewords = (text, version) => {
  const [all, blocks, ec] = [allBytes(version), BLOCKS[version - 1], EC_BYTES[version - 1]];
  const room = all - blocks * ec;
  const bits = [];
  const put = (value, count) => {
    for (let i = count - 1; i >= 0; i--) bits.push((value >> i) & 1);
  };
  put(4, 4);
  put(text.length, version < 10 ? 8 : 16);
  for (const byte of text) put(byte, 8);
  for (let i = 0; i < 4 && bits.length < room * 8; i++) bits.push(0);
  while (bits.length % 8) bits.push(0);
  for (let pad = 0xec; bits.length < room * 8; pad ^= 0xec ^ 0x11) put(pad, 8);
  const data = new Uint8Array(room);
  bits.forEach((bit, i) => (data[i >> 3] |= bit << (7 - (i & 7))));
  const [short, long] = [Math.floor(room / blocks), room % blocks];
  const parts = [];
  for (let i = 0, at = 0; i < blocks; i++) {
    const part = data.subarray(at, (at += short + (i >= blocks - long ? 1 : 0)));
    parts.push([part, remainder(part, ec)]);
  }
  const mixed = [];
  for (let i = 0; i <= short; i++) for (const [part] of parts) if (i < part.length) mixed.push(part[i]);
  for (let i = 0; i < ec; i++) for (const [, check] of parts) mixed.push(check[i]);
  return mixed;
};
// The squares of the code, by row; null if the text is too long for one.
const qrCode = (string) => {
  const text = new TextEncoder().encode(string);
  let version = 1;
  const fits = () => 4 + (version < 10 ? 8 : 16) + 8 * text.length <= 8 * (allBytes(version) - BLOCKS[version - 1] * EC_BYTES[version - 1]);
  while (version <= 40 && !fits()) version++;
  if (version > 40) return null;
  const size = 17 + 4 * version;
  const square = () => Array.from({ length: size }, () => new Array(size).fill(null));
  const dark = square();
  const set = (x, y, value) => {
    if (x >= 0 && y >= 0 && x < size && y < size) dark[y][x] = Boolean(value);
  };
  for (let i = 0; i < size; i++) {
    set(6, i, i % 2 === 0);
    set(i, 6, i % 2 === 0);
  }
  for (const [cx, cy] of [[3, 3], [size - 4, 3], [3, size - 4]]) {
    for (let y = -4; y <= 4; y++) for (let x = -4; x <= 4; x++) {
      const ring = Math.max(Math.abs(x), Math.abs(y));
      set(cx + x, cy + y, ring !== 2 && ring !== 4);
    }
  }
  if (version > 1) {
    const count = Math.floor(version / 7) + 2;
    const step = version === 32 ? 26 : Math.ceil((version * 4 + 4) / (count * 2 - 2)) * 2;
    const places = [6];
    for (let i = 0; i < count - 1; i++) places.splice(1, 0, size - 7 - i * step);
    places.forEach((cy, i) => places.forEach((cx, j) => {
      const last = count - 1;
      if ((i === 0 && j === 0) || (i === 0 && j === last) || (i === last && j === 0)) return;
      for (let y = -2; y <= 2; y++) for (let x = -2; x <= 2; x++) set(cx + x, cy + y, Math.max(Math.abs(x), Math.abs(y)) !== 1);
    }));
  }
  // Level L and mask 0, with their error correction.
  let rest = 8;
  for (let i = 0; i < 10; i++) rest = (rest << 1) ^ ((rest >> 9) * 0x537);
  const format = ((8 << 10) | rest) ^ 0x5412;
  for (let i = 0; i < 15; i++) {
    const bit = (format >> i) & 1;
    if (i < 6) set(8, i, bit);
    else if (i < 8) set(8, i + 1, bit);
    else if (i === 8) set(7, 8, bit);
    else set(14 - i, 8, bit);
    if (i < 8) set(size - 1 - i, 8, bit);
    else set(8, size - 15 + i, bit);
  }
  set(8, size - 8, true);
  if (version > 6) {
    let rest = version;
    for (let i = 0; i < 12; i++) rest = (rest << 1) ^ ((rest >> 11) * 0x1f25);
    const bits = (version << 12) | rest;
    for (let i = 0; i < 18; i++) {
      const [a, b, bit] = [size - 11 + (i % 3), Math.floor(i / 3), (bits >> i) & 1];
      set(a, b, bit);
      set(b, a, bit);
    }
  }
  const bytes = codewords(text, version);
  let at = 0;
  for (let right = size - 1; right > 0; right -= 2) {
    if (right === 6) right = 5;
    const up = ((right + 1) & 2) === 0;
    for (let row = 0; row < size; row++) {
      const y = up ? size - 1 - row : row;
      for (const x of [right, right - 1]) {
        if (dark[y][x] !== null) continue;
        const bit = at < bytes.length * 8 ? (bytes[at >> 3] >> (7 - (at & 7))) & 1 : 0;
        at++;
        dark[y][x] = Boolean(bit ^ ((x + y) % 2 === 0 ? 1 : 0));
      }
    }
  }
  return dark;
};

if (typeof document !== "undefined") {
  const svg = (name, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  };
  const draw = (place, text) => {
    const dark = qrCode(text);
    if (!dark) return;
    const side = dark.length + 8;
    const image = svg("svg", { viewBox: `0 0 ${side} ${side}`, "shape-rendering": "crispEdges" });
    image.append(svg("rect", { width: side, height: side, fill: "#fff" }));
    const path = dark.flatMap((row, y) => row.map((on, x) => (on ? `M${x + 4} ${y + 4}h1v1h-1z` : ""))).join("");
    image.append(svg("path", { d: path, fill: "#000" }));
    place.append(image);
    place.hidden = false;
  };
  // Shows what a page of the server holds in place of what is shown.
  const show = (text) => {
    const page = new DOMParser().parseFromString(text, "text/html");
    document.title = page.title;
    document.querySelector("main").replaceWith(page.querySelector("main"));
    begin();
    const main = document.querySelector("main");
    main.tabIndex = -1;
    main.focus();
  };
  const addDevice = (form) => {
    for (const part of form.querySelectorAll("[data-without-script]")) part.hidden = true;
    for (const part of form.querySelectorAll("[data-with-script]")) part.hidden = false;
    form.elements.public_key.required = false;
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      form.querySelector("button").disabled = true;
      const pair = await keyPair();
      form.elements.public_key.value = pair.public;
      const body = new URLSearchParams(new FormData(form));
      const answer = await fetch(form.action, { method: "POST", body }).catch(() => null);
      // The browser says what is wrong, or the list whether the device was added.
      if (!answer) return location.assign("/devices");
      if (answer.redirected) return location.assign(answer.url);
      show(await answer.text());
      const shown = document.getElementById("configuration");
      if (!shown) return;
      const text = shown.textContent.replace(/^# PrivateKey = .*$/m, `PrivateKey = ${pair.secret}`);
      shown.textContent = text;
      for (const part of document.querySelectorAll("[data-with-script]")) part.hidden = false;
      for (const part of document.querySelectorAll("[data-without-script]")) part.hidden = true;
      document.getElementById("file").href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
      draw(document.getElementById("qr"), text);
    });
  };
  const waitForApproval = () => {
    const look = async () => {
      const answer = await fetch("/login/wait").catch(() => null);
      if (!answer || answer.status >= 500) return setTimeout(look, 5000);
      if (answer.redirected && !answer.url.endsWith("/login/wait")) return location.assign(answer.url);
      const text = await answer.text();
      if (text.includes('id="waiting"')) return setTimeout(look, 1000);
      show(text);
    };
    setTimeout(look, 1000);
  };
  const begin = () => {
    const form = document.getElementById("add");
    if (form) addDevice(form);
    if (document.getElementById("waiting")) waitForApproval();
  };
  begin();
} else {
  globalThis.forTests = { publicKey, qrCode, keyPair, base64 };
}
