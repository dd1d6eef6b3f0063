"use strict";
// The page of a schedule. What is drawn is put together per pixel of the window that is looked at, so a
// picture of ten thousand steps costs what one of a thousand pixels does, and is exact once zoomed in.
(async () => {
const packed = Uint8Array.from(atob(document.getElementById("data").textContent), (letter) => letter.charCodeAt(0));
const data = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
const { figures, memory, plain, steps, tensors, operations, lives, period } = data;
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

function element(tag, text, attributes = {}) {
  const made = Object.assign(document.createElement(tag), attributes);
  if (text !== undefined) made.textContent = text;
  return made;
}
const put = (id, ...children) => document.getElementById(id).replaceChildren(...children);

// ── colours ─────────────────────────────────────────────────────────────────────────────────────

const { kind: KIND, phase: PHASE, again: AGAIN, copy: COPY } = data.colours;
const FATE = ["#8a94a0", AGAIN, COPY];
const SHORT = ["compute", "CPU", "D → H", "H → D", "→ disk", "disk →"];
const ELSEWHERE = ["#3b6ea5", "#c9a227", "#8c6d31"];
const CAUSE = ["#c9a227", "#9467bd", "#17a2b8", "#6aa84f", "#8c6d31", "#bd9e39", "#7f7f7f", "#c0392b"];
const ink = () => (dark.matches
  ? { text: "#e6e8eb", soft: "#98a1ac", line: "#333942", budget: "#ff8a80", ground: "#15181c" }
  : { text: "#1d2127", soft: "#626a75", line: "#dcdfe4", budget: "#b3261e", ground: "#fcfcfb" });

// ── head ────────────────────────────────────────────────────────────────────────────────────────

function head() {
  put("name", data.title);
  const over = figures.budget !== null && figures.peak > figures.budget;
  const fits = figures.budget === null ? `Peak ${bytes(figures.peak)}, no budget`
    : over ? "Does not fit" : `Fits in ${bytes(figures.budget)}`;
  const proof = data.gap === null ? "" : data.gap < 5e-5 ? ": nothing is faster"
    : `: at most ${(data.gap * 100).toFixed(1)} % above the fastest there can be`;
  const verdict = document.getElementById("verdict");
  verdict.replaceChildren(element("b", fits, { className: over ? "bad" : "good" }),
    `, at ${signed(data.overhead)} of plain time${proof}.`);
  const share = figures.budget ? `${(100 * figures.peak / figures.budget).toFixed(1)} % of the budget` : "no budget";
  const rows = [
    ["time", seconds(figures.time), `plain ${seconds(figures.baseline_time)}`],
    ["peak on the device", bytes(figures.peak), share],
    ["plain peak", bytes(figures.baseline_peak), `saved ${bytes(figures.baseline_peak - figures.peak)}`],
    ["lower bound", figures.lower_bound === null ? "none" : seconds(figures.lower_bound), "any order"],
  ];
  data.fates.forEach((word, fate) => {
    const chosen = tensors.bytes.filter((_, x) => tensors.fate[x] === fate);
    if (fate && chosen.length) rows.push([`tensors ${word}`, `${chosen.length} of ${tensors.fate.length}`, `${bytes(chosen.reduce((a, b) => a + b))} in all`]);
  });
  if (figures.host_peak) rows.push(["host", bytes(figures.host_peak), `pinned ${bytes(figures.pinned_peak)}`]);
  if (figures.disk_peak) rows.push(["disk", bytes(figures.disk_peak), ""]);
  put("figures", ...rows.map(([label, value, more]) => {
    const box = element("div"), line = element("dd", value);
    line.append(element("small", more));
    box.append(element("dt", label), line);
    return box;
  }));
  put("origin", ...data.origin.map((line) => element("div", line)));
}

// ── what is where in time ───────────────────────────────────────────────────────────────────────

// The last place whose value is not above x; -1: none.
function place(sorted, x) {
  let low = 0, high = sorted.length;
  while (low < high) { const middle = (low + high) >> 1; if (sorted[middle] <= x) low = middle + 1; else high = middle; }
  return low - 1;
}
const elsewhere = data.elsewhere.filter((curve) => curve.bytes.some(Boolean));
const totals = memory.at.map((_, k) => memory.sums.reduce((sum, row) => sum + row[k], 0));
const queues = data.queues.map((name, queue) => ({ name, queue, rows: steps.queue.flatMap((q, k) => (q === queue ? [k] : [])) }))
  .filter(({ rows }) => rows.length);
for (const each of queues) each.starts = each.rows.map((k) => steps.start[k]);
const first = Math.min(0, ...queues.map(({ starts }) => starts[0]));
const last = queues.reduce((most, { rows }) => Math.max(most, steps.end[rows[rows.length - 1]]), Math.max(period, plain.end));
const born = tensors.name.map(() => Infinity);
lives.forEach((row) => row.tensor.forEach((x, k) => { born[x] = Math.min(born[x], row.start[k]); }));
const order = [...born.keys()].filter((x) => born[x] < Infinity).sort((a, b) => born[a] - born[b] || tensors.bytes[b] - tensors.bytes[a]);
const rank = []; order.forEach((x, k) => { rank[x] = k; });
const bars = order.map(() => []);
lives.forEach((row, where) => row.tensor.forEach((x, k) => bars[rank[x]].push([row.start[k], row.end[k], where])));

// ── drawing ─────────────────────────────────────────────────────────────────────────────────────

const rect = (x, y, width, height, fill) => ({ type: "rect", shape: { x, y, width, height }, style: { fill } });

// Per pixel column the moment with the most bytes, as stacked areas.
function stack(_params, api) {
  const [from, to] = window_(), left = Math.max(0, place(memory.at, from));
  const columns = [];
  for (let k = left; k < memory.at.length && memory.at[k] <= to; k += 1) {
    const x = Math.round(api.coord([Math.max(from, memory.at[k]), 0])[0]);
    const newest = columns[columns.length - 1];
    if (newest && newest.x === x) { if (totals[k] >= totals[newest.k]) newest.k = k; newest.then = k; }
    else columns.push({ x, k, then: k });
  }
  const end = api.coord([Math.min(to, Math.max(period, memory.at[memory.at.length - 1])), 0])[0];
  const below = columns.map(() => 0), children = [];
  memory.sums.forEach((row, kind) => {
    if (!row.some(Boolean)) return;
    const lower = [], upper = [];
    columns.forEach((column, i) => {
      const next = i + 1 < columns.length ? columns[i + 1].x : end;
      const bottom = api.coord([0, below[i]])[1], top = api.coord([0, below[i] += row[column.k]])[1];
      lower.push([column.x, bottom], [next, bottom]);
      upper.push([column.x, top], [next, top]);
    });
    children.push({ type: "polygon", shape: { points: [...upper, ...lower.reverse()] }, style: { fill: KIND[kind] } });
  });
  return { type: "group", children };
}

// A step function as a line. Per pixel column its highest value.
function outline({ at, bytes: sizes, end }, style) {
  return (_params, api) => {
    const points = [];
    let newest = -1, high = 0;
    at.forEach((time, k) => {
      const x = Math.round(api.coord([time, 0])[0]), y = api.coord([0, sizes[k]])[1];
      if (x === newest) { high = Math.min(high, y); points[points.length - 1][1] = high; return; }
      if (points.length) points.push([x, points[points.length - 1][1]]);
      points.push([x, y]); newest = x; high = y;
    });
    if (points.length) points.push([api.coord([end, 0])[0], points[points.length - 1][1]]);
    return { type: "polyline", shape: { points }, style: { fill: "none", ...style } };
  };
}

// Steps of one queue and the waits before them. Neighbours of one colour within a pixel are one.
function lane({ rows, starts }, row) {
  return (_params, api) => {
    const [from, to] = window_(), boxes = [];
    const height = api.size([0, 1])[1] * 0.72, y = api.coord([0, row])[1] - height / 2;
    const put_ = (begin, end, fill, thin) => {
      if (end < from || begin > to) return;
      const x = api.coord([Math.max(begin, from), row])[0], width = api.coord([Math.min(end, to), row])[0] - x;
      const newest = boxes[boxes.length - 1];
      if (newest && newest.fill === fill && newest.thin === thin && x - newest.x - newest.width < 1) newest.width = Math.max(newest.width, x + width - newest.x);
      else if (!newest || width >= 0.5 || x + width - newest.x - newest.width >= 0.5) boxes.push({ x, width: Math.max(width, 0.5), fill, thin });
    };
    for (let i = Math.max(0, place(starts, from)); i < rows.length; i += 1) {
      const k = rows[i];
      if (steps.start[k] - steps.idle[k] > to) break;
      if (steps.cause[k] >= 0 && steps.queue[k] < 2) put_(steps.start[k] - steps.idle[k], steps.start[k], CAUSE[steps.cause[k]], true);
      put_(steps.start[k], steps.end[k], colour(k), false);
    }
    return { type: "group", children: boxes.map((b) => rect(b.x, b.thin ? y + height * 0.38 : y, b.width, b.thin ? height * 0.24 : height, b.fill)) };
  };
}
const colour = (k) => (steps.queue[k] > 1 ? COPY : steps.again[k] ? AGAIN : PHASE[operations.phase[steps.of[k]]]);

// A row a tensor, by when it is first there; where rows are thinner than a pixel the largest tensor shows.
function life(_params, api) {
  const [from, to] = window_(), [low, high] = window_("y"), children = [];
  const height = Math.abs(api.size([0, 1])[1]);
  let taken = -Infinity, best = -1;
  const draw = (k) => {
    const y = api.coord([0, k])[1] - height / 2, x = order[k];
    for (const [begin, end, where] of bars[k]) {
      if (end < from || begin > to) continue;
      const left = api.coord([Math.max(begin, from), k])[0], right = api.coord([Math.min(end, to), k])[0];
      const shape = rect(left, y, Math.max(right - left, 0.5), Math.max(height * 0.85, 1), FATE[tensors.fate[x]]);
      shape.style.opacity = where === 0 ? 1 : where === 1 ? 0.35 : 0.18;
      children.push(shape);
    }
  };
  for (let k = Math.max(0, Math.floor(low)); k <= Math.min(order.length - 1, Math.ceil(high)); k += 1) {
    const row = Math.floor(api.coord([0, k])[1]);
    if (row !== taken && best >= 0) { draw(best); best = -1; }
    if (best < 0 || tensors.bytes[order[k]] > tensors.bytes[order[best]]) best = k;
    taken = row;
  }
  if (best >= 0) draw(best);
  return { type: "group", children };
}

// ── the chart ───────────────────────────────────────────────────────────────────────────────────

const holder = document.getElementById("chart");
let chart, zoom = { x: [first, last], y: [-0.5, order.length - 0.5] };
const window_ = (axis = "x") => zoom[axis];

// A power of two that makes at most so many steps up to a size.
const step = (most, count = 6) => 2 ** Math.max(0, Math.ceil(Math.log2(most / count)));

function draw() {
  const { text, soft, line, budget, ground } = ink();
  const left = narrow.matches ? 62 : 110, right = narrow.matches ? 12 : 34;
  const heights = [300, 18 + 26 * queues.length, Math.min(320, 60 + 2 * order.length), ...(elsewhere.length ? [110] : [])];
  const tops = []; let y = 14;
  for (const height of heights) { tops.push(y); y += height + 34; }
  holder.style.height = `${y + 30}px`;
  chart?.dispose();
  chart = echarts.init(holder, null, { renderer: "canvas" });
  const axis = { axisLine: { lineStyle: { color: line } }, splitLine: { show: false }, axisLabel: { color: soft }, nameTextStyle: { color: soft } };
  const shared = heights.map((_, k) => k);
  const most = Math.max(figures.peak, figures.budget ?? 0, figures.baseline_peak);
  const mostElsewhere = elsewhere.reduce((size, curve) => Math.max(size, ...curve.bytes), 1);
  const series = [
    { name: "memory", z: 2, xAxisIndex: 0, yAxisIndex: 0, renderItem: stack },
    { name: "plain", z: 1, xAxisIndex: 0, yAxisIndex: 0, renderItem: outline(plain, { stroke: soft, lineDash: [3, 3] }) },
    ...queues.map((queue, row) => ({ name: queue.name, z: 2, xAxisIndex: 1, yAxisIndex: 1, renderItem: lane(queue, queues.length - 1 - row) })),
    { name: "lives", z: 2, xAxisIndex: 2, yAxisIndex: 2, renderItem: life },
    ...elsewhere.map((curve, k) => ({ name: curve.name, z: 2, xAxisIndex: 3, yAxisIndex: 3, renderItem: outline(curve, { stroke: ELSEWHERE[k], lineWidth: k ? 1.5 : 5, opacity: k ? 1 : 0.45 }) })),
  ].map((each) => ({ type: "custom", data: [0], clip: true, silent: true, animation: false, encode: { x: -1, y: -1 }, ...each }));
  if (figures.budget !== null) series[0].markLine = { silent: true, symbol: "none", animation: false, data: [{ yAxis: figures.budget }],
    lineStyle: { color: budget, type: "solid" }, label: { formatter: `budget ${bytes(figures.budget)}`, position: "insideEndTop", color: budget } };
  chart.setOption({
    animation: false, textStyle: { color: text }, backgroundColor: ground,
    grid: heights.map((height, k) => ({ left, right, top: tops[k], height })),
    xAxis: shared.map((k) => ({ ...axis, gridIndex: k, type: "value", min: first, max: last, axisLabel: { ...axis.axisLabel, formatter: seconds, hideOverlap: true },
      axisPointer: { show: true, triggerTooltip: false, label: { show: k === 0, formatter: ({ value }) => seconds(value) } } })),
    yAxis: [
      { ...axis, gridIndex: 0, type: "value", min: 0, max: most * 1.08, interval: step(most), axisLabel: { ...axis.axisLabel, formatter: bytes, showMaxLabel: false }, splitLine: { show: true, lineStyle: { color: line } } },
      { ...axis, gridIndex: 1, type: "value", min: -0.5, max: queues.length - 0.5, interval: 1, axisTick: { show: false },
        axisLabel: { ...axis.axisLabel, width: left - 12, overflow: "break", formatter: () => "" } },
      { ...axis, gridIndex: 2, type: "value", min: -0.5, max: order.length - 0.5, inverse: true, axisLabel: { show: false }, axisTick: { show: false },
        name: "tensors", nameLocation: "middle", nameGap: narrow.matches ? 40 : 60 },
      ...(elsewhere.length ? [{ ...axis, gridIndex: 3, type: "value", min: 0, max: mostElsewhere * 1.1, interval: step(mostElsewhere, 3),
        axisLabel: { ...axis.axisLabel, formatter: bytes, showMaxLabel: false } }] : []),
    ],
    graphic: queues.map(({ name, queue }, row) => ({ type: "text", silent: true, left: 4, top: tops[1] + (row + 0.5) * heights[1] / queues.length - 6,
      style: { text: narrow.matches ? SHORT[queue] : name, fill: soft, font: "12px system-ui, sans-serif", width: left - 8, overflow: "truncate" } })),
    axisPointer: { link: [{ xAxisIndex: "all" }], lineStyle: { color: soft } },
    dataZoom: [
      { type: "inside", xAxisIndex: shared, filterMode: "none" },
      { type: "slider", xAxisIndex: shared, filterMode: "none", bottom: 4, height: 20, brushSelect: false, labelFormatter: seconds, borderColor: line, textStyle: { color: soft } },
      { type: "slider", yAxisIndex: [2], filterMode: "none", right: 4, width: 12, top: tops[2], height: heights[2], showDetail: false, brushSelect: false, borderColor: line },
    ],
    series,
  });
  chart.on("datazoom", () => {
    const [x, , side] = chart.getOption().dataZoom;
    zoom = { x: [x.startValue, x.endValue], y: [side.startValue, side.endValue] };
  });
  const told = (event) => {
    const point = [event.offsetX, event.offsetY];
    const grid = heights.findIndex((_, k) => chart.containPixel({ gridIndex: k }, point));
    if (grid >= 0) tell(grid, ...chart.convertFromPixel({ gridIndex: grid }, point));
  };
  chart.getZr().on("mousemove", told);
  chart.getZr().on("click", told);
}

function legend() {
  const entry = ([word, fill]) => {
    const made = element("span"), box = element("i");
    box.style.background = fill;
    made.append(box, word);
    return made;
  };
  const chosen = (words, fills, holds) => words.map((word, k) => [word, fills[k], k]).filter(([, , k]) => holds(k));
  const stalls = steps.cause.filter((_, k) => steps.queue[k] < 2);
  const groups = {
    memory: chosen(data.kinds, KIND, (kind) => memory.sums[kind].some(Boolean)),
    queues: [
      ...chosen(data.phases, PHASE, (phase) => operations.phase.includes(phase)),
      ...(steps.again.includes(1) ? [["again", AGAIN]] : []),
      ...(queues.some(({ queue }) => queue > 1) ? [["copies", COPY]] : []),
      ...chosen(data.causes.map((word) => `waits for ${word}`), CAUSE, (cause) => stalls.includes(cause)),
    ],
    tensors: chosen(data.fates, FATE, (fate) => tensors.fate.includes(fate)),
    elsewhere: elsewhere.map(({ name }, k) => [name, ELSEWHERE[k]]),
  };
  put("legend", ...Object.entries(groups).filter(([, entries]) => entries.length).map(([name, entries]) => {
    const line = element("div");
    line.append(element("b", name), ...entries.map(entry));
    return line;
  }));
}

// ── what is told of a moment ────────────────────────────────────────────────────────────────────

function tell(grid, time, height) {
  const lines = [];
  if (grid === 1) {
    const queue = queues[queues.length - 1 - Math.round(height)];
    if (queue) lines.push(...toldOfQueue(queue, time));
  } else if (grid === 2) {
    const x = order[Math.round(height)];
    if (x !== undefined) lines.push(`${tensors.name[x]}: ${bytes(tensors.bytes[x])}, ${data.kinds[tensors.kind[x]]}, ${data.fates[tensors.fate[x]]}${of(tensors.layer[x])}`);
  }
  const moment = place(memory.at, time);
  if (moment < 0) return;
  const parts = memory.sums.map((row, kind) => [row[moment], data.kinds[kind]]).filter(([size]) => size > 0).sort((a, b) => b[0] - a[0]);
  lines.push(`${seconds(time)}: ${bytes(totals[moment])} on the device: ${parts.map(([size, word]) => `${word} ${bytes(size)}`).join(", ")}`);
  const there = lives[0].tensor.flatMap((x, k) => (within(lives[0].start[k], lives[0].end[k], time) ? [x] : []));
  there.sort((a, b) => tensors.bytes[b] - tensors.bytes[a]);
  const table = element("table");
  const titles = element("tr");
  for (const word of ["tensor", "bytes", "kind", "next reader"]) titles.append(element("th", word));
  table.append(titles);
  for (const x of there.slice(0, 8)) {
    const row = element("tr");
    row.append(element("td", tensors.name[x] + of(tensors.layer[x]), { className: "name" }), element("td", bytes(tensors.bytes[x])), element("td", data.kinds[tensors.kind[x]]), element("td", nextReader(x, time)));
    table.append(row);
  }
  const wide = element("div", undefined, { className: "wide" });
  wide.append(table);
  const more = there.length > 8 ? [element("p", `and ${there.length - 8} more`, { className: "hint" })] : [];
  put("detail", ...lines.map((line) => element("p", line)), wide, ...more);
}
const within = (start, end, time) => (start <= time && time < end) || (start <= time + period && time + period < end);
const of = (layer) => (layer ? ` (${layer})` : "");

function toldOfQueue({ rows, starts }, time) {
  const k = rows[Math.max(0, place(starts, time))], next = rows[place(starts, time) + 1];
  if (time <= steps.end[k] && time >= steps.start[k]) {
    const compute = steps.queue[k] < 2, of_ = compute ? operations : tensors;
    const mode = steps.mode[k] ? `, mode ${steps.mode[k]}` : "";
    const what = compute ? `${data.phases[operations.phase[steps.of[k]]]}${steps.again[k] ? ", again" : ""}${mode}` : bytes(tensors.bytes[steps.of[k]]);
    return [`${of_.name[steps.of[k]]}: ${what}, ${seconds(steps.end[k] - steps.start[k])}${of(of_.layer[steps.of[k]])}`];
  }
  return next !== undefined && steps.cause[next] >= 0 ? [`stands still for ${seconds(steps.idle[next])}: waits for ${data.causes[steps.cause[next]]}`] : [];
}

const runsOf = operations.name.map(() => []);
steps.queue.forEach((queue, k) => { if (queue < 2) runsOf[steps.of[k]].push(k); });
function nextReader(x, time) {
  let best = -1;
  for (const operation of tensors.readers[x]) for (const k of runsOf[operation]) {
    if (steps.start[k] > time && (best < 0 || steps.start[k] < steps.start[best])) best = k;
  }
  return best < 0 ? (tensors.readers[x].length ? "in the next iteration" : "nobody") : `${operations.name[steps.of[best]]}, in ${seconds(steps.start[best] - time)}`;
}

// ── modules ─────────────────────────────────────────────────────────────────────────────────────

const FIGURES = ["time", "again", "copied", "peak"];
function tree() {
  const root = { name: "all", children: new Map(), sums: [0, 0, 0, 0] };
  for (const row of data.modules) {
    let node = root;
    FIGURES.forEach((name, k) => { node.sums[k] += row[name]; });
    for (const part of row.module.split(".")) {
      if (!node.children.has(part)) node.children.set(part, { name: part, children: new Map(), sums: [0, 0, 0, 0] });
      node = node.children.get(part);
      FIGURES.forEach((name, k) => { node.sums[k] += row[name]; });
    }
  }
  return root;
}
function modules() {
  const table = document.getElementById("modules"), root = tree();
  const titles = element("tr");
  for (const word of ["module", "time", "share", "again", "copied", "at the peak"]) titles.append(element("th", word));
  table.append(titles);
  const add = (node, depth, after) => {
    while (node.children.size === 1 && depth) {
      const [only] = node.children.values();
      node = { ...only, name: `${node.name}.${only.name}` };
    }
    const row = element("tr"), name = element("td", undefined, { className: "name" });
    name.style.paddingLeft = `${depth * 1.1}rem`;
    const [time, again, copied, peak] = node.sums;
    row.append(name, ...[seconds(time + again), `${(100 * (time + again) / (root.sums[0] + root.sums[1] || 1)).toFixed(1)} %`, again ? seconds(again) : "", copied ? bytes(copied) : "", peak ? bytes(peak) : ""].map((text) => element("td", text)));
    if (after) after.after(row); else table.append(row);
    const toggle = element(node.children.size ? "button" : "span", node.children.size ? "▸" : "");
    name.append(toggle, ` ${node.name}`);
    let shown = [];
    const open = () => {
      toggle.textContent = "▾";
      let below = row;
      for (const child of node.children.values()) { const made = add(child, depth + 1, below); shown.push(made); below = made.end(); }
    };
    const close = () => { toggle.textContent = "▸"; for (const made of shown) made.remove(); shown = []; };
    if (node.children.size) {
      toggle.setAttribute("aria-label", `show what is in ${node.name}`);
      toggle.addEventListener("click", () => (shown.length ? close() : open()));
    }
    const made = { end: () => (shown.length ? shown[shown.length - 1].end() : row), remove: () => { close(); row.remove(); } };
    if (depth < 2 && node.children.size) open();
    return made;
  };
  add(root, 0, null);
}

// ── what else is known ──────────────────────────────────────────────────────────────────────────

let curve;
function bench() {
  if (!data.bench) return;
  document.getElementById("curve-section").hidden = false;
  const { text, soft, line, ground } = ink();
  const axis = { type: "value", scale: true, axisLine: { lineStyle: { color: line } }, splitLine: { lineStyle: { color: line } }, nameTextStyle: { color: soft }, nameLocation: "middle" };
  const most = Math.max(...data.bench.map(({ budget }) => budget));
  const line_ = (rows, value) => rows.filter((row) => row[value] !== null).sort((a, b) => a.budget - b.budget).map((row) => [row.budget, row[value]]);
  const solvers = [...new Set(data.bench.map(({ solver }) => solver))];
  const bounds = new Map();
  for (const { budget, bound } of data.bench) if (bound !== null) bounds.set(budget, Math.max(bound, bounds.get(budget) ?? 0));
  curve?.dispose();
  curve = echarts.init(document.getElementById("curve"));
  curve.setOption({
    animation: false, backgroundColor: ground, textStyle: { color: text },
    grid: { left: narrow.matches ? 70 : 110, right: 30, top: 36, bottom: 50 },
    legend: { top: 0, type: "scroll", textStyle: { color: soft } },
    tooltip: { trigger: "item", formatter: ({ seriesName, value }) => `${echarts.format.encodeHTML(seriesName)}: ${bytes(value[0])}, ${seconds(value[1])}` },
    xAxis: { ...axis, interval: step(most), axisLabel: { color: soft, formatter: bytes, hideOverlap: true, showMinLabel: false, showMaxLabel: false }, name: "budget", nameGap: 30 },
    yAxis: { ...axis, axisLabel: { color: soft, formatter: seconds } },
    series: [
      ...solvers.map((solver) => ({ name: solver, type: "line", symbolSize: 7, data: line_(data.bench.filter((row) => row.solver === solver), "time") })),
      { name: "lower bound", type: "line", symbolSize: 4, color: soft, lineStyle: { type: "dashed" }, data: [...bounds].sort((a, b) => a[0] - b[0]) },
      ...(figures.budget === null ? [] : [{ name: "this schedule", type: "scatter", symbol: "diamond", symbolSize: 14, color: AGAIN, data: [[figures.budget, figures.time]] }]),
    ],
  });
}

function measured() {
  if (!data.run) return;
  document.getElementById("run-section").hidden = false;
  const rows = [["", "time", "peak", "host", "disk"], ...Object.entries(data.run).map(([who, row]) =>
    [who === "predicted" ? "planned" : who, seconds(row.time), bytes(row.peak), row.host_peak ? bytes(row.host_peak) : "", row.disk_peak ? bytes(row.disk_peak) : ""])];
  const off = (name) => signed(data.run.measured[name] / data.run.predicted[name] - 1);
  rows.push(["measured against planned", off("time"), off("peak"), "", ""]);
  put("run", ...rows.map((cells, k) => { const row = element("tr"); row.append(...cells.map((text) => element(k ? "td" : "th", text))); return row; }));
}

head();
legend();
modules();
measured();
bench();
draw();
tell(0, memory.at[totals.indexOf(Math.max(...totals))] ?? 0);
for (const query of [dark, narrow]) query.addEventListener("change", () => { draw(); bench(); });
addEventListener("resize", () => { chart.resize(); curve?.resize(); });
chart.getZr().flush();
document.body.dataset.ready = Math.round(performance.now());  // milliseconds since the page was asked for
})();
