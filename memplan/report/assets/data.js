// What is shown: the data, words and units and colours for it, and what is where in time.

const packed = Uint8Array.from(atob(document.getElementById("data").textContent), (letter) => letter.charCodeAt(0));
const data = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
const { figures, memory, baseline, steps, tensors, operations, lives, period } = data;
const dark = matchMedia("(prefers-color-scheme: dark)");
const narrow = matchMedia("(max-width: 700px)");

// ── words ───────────────────────────────────────────────────────────────────────────────────────

const BYTES = ["B", "KiB", "MiB", "GiB", "TiB"];
function bytes(size) {
  let unit = 0;
  while (Math.abs(size) >= 1024 && unit < BYTES.length - 1) { size /= 1024; unit += 1; }
  return `${digits(size)} ${BYTES[unit]}`;
}
function seconds(value) {
  const size = Math.abs(value);
  if (size >= 1 || size === 0) return `${digits(value)} s`;
  return size >= 1e-3 ? `${digits(value * 1e3)} ms` : `${digits(value * 1e6)} µs`;
}
function digits(value) {
  return Math.abs(value) >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
}
const signed = (part) => `${part >= 0 ? "+" : "−"}${Math.abs(part * 100).toFixed(1)} %`;
// A power of two that makes at most so many steps up to a size.
const step = (most, count = 6) => 2 ** Math.max(0, Math.ceil(Math.log2(most / count)));
// A name that may be broken after its dots and slashes.
const breakable = (name) => name.replace(/[./](?=.)/g, "$&\u200b");
const of = (layer) => (layer ? ` (${layer})` : "");

function element(tag, text, attributes = {}) {
  const made = Object.assign(document.createElement(tag), attributes);
  if (text !== undefined) made.textContent = text;
  return made;
}
const put = (id, ...children) => document.getElementById(id).replaceChildren(...children);

// ── colours ─────────────────────────────────────────────────────────────────────────────────────

const { kind: KIND, phase: PHASE, recomputed: RECOMPUTED, copy: COPY } = data.colours;
const PALE = data.memories.map((_, where) => [1, 0.45, 0.25][where] ?? 0.15);  // on the device, the host, the disk, …
const FATE = ["#8a94a0", RECOMPUTED, COPY];
const SHORT = ["compute", "CPU", "D → H", "H → D", ...data.memories.slice(2).flatMap((name) => [`→ ${name}`, `${name} →`])];
const ELSEWHERE = ["#3b6ea5", "#c9a227", "#8c6d31", "#6aa84f", "#9467bd"];
const CAUSE = ["#c9a227", "#9467bd", "#17a2b8", "#6aa84f", "#4d5bd6", "#e78ac3", "#7f7f7f", "#c0392b"];
const ink = () => (dark.matches
  ? { text: "#e6e8eb", soft: "#98a1ac", line: "#333942", budget: "#ff8a80", ground: "#15181c" }
  : { text: "#1d2127", soft: "#626a75", line: "#dcdfe4", budget: "#b3261e", ground: "#fcfcfb" });

// ── what is where in time ───────────────────────────────────────────────────────────────────────

// The last place whose value is not above x; -1: none.
function place(sorted, x) {
  let low = 0, high = sorted.length;
  while (low < high) { const middle = (low + high) >> 1; if (sorted[middle] <= x) low = middle + 1; else high = middle; }
  return low - 1;
}
// The memories below the host that hold anything: name, peak, place in the row.
const peaksBelow = [figures.disk_peak, ...figures.deeper_peaks].map((peak, k) => [data.memories[k + 2], peak, k + 2]).filter(([, peak]) => peak);
const elsewhere = data.elsewhere.filter((curve) => curve.bytes.some(Boolean));
const totals = memory.at.map((_, k) => memory.sums.reduce((sum, row) => sum + row[k], 0));
// One iteration of the steady state is drawn: what begins before it or ends behind it is there twice, as of the
// iteration before and the one behind. rows: steps. starts, ends: seconds.
const queues = data.queues.map((name, queue) => ({ name, queue, rows: [], starts: [], ends: [] }));
{
  const known = [];
  steps.queue.forEach((queue, k) => {
    for (const shift of [-period, 0, period]) {
      const start = steps.start[k] + shift, end = steps.end[k] + shift;
      if (start < period && (end > 0 || (shift === 0 && start === end))) known.push([start, end, queue, k]);
    }
  });
  known.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  for (const [start, end, queue, k] of known) { queues[queue].rows.push(k); queues[queue].starts.push(start); queues[queue].ends.push(end); }
  queues.splice(0, queues.length, ...queues.filter(({ rows }) => rows.length));
}
const first = 0, last = Math.max(period, baseline.end);
const born = tensors.name.map(() => Infinity);
lives.forEach((row) => row.tensor.forEach((x, k) => { born[x] = Math.min(born[x], row.start[k]); }));
const order = [...born.keys()].filter((x) => born[x] < Infinity).sort((a, b) => born[a] - born[b] || tensors.bytes[b] - tensors.bytes[a]);
const rank = []; order.forEach((x, k) => { rank[x] = k; });
const bars = order.map(() => []);
// What is there when the iteration ends was there when it began, and may be until the one behind.
lives.forEach((row, where) => row.tensor.forEach((x, k) => {
  let start = row.start[k], end = row.end[k];
  do {
    bars[rank[x]].push([Math.max(0, start), Math.min(end, period), where]);
    start -= period; end -= period;
  } while (end > 0 && period > 0);
}));
