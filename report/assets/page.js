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
const PALE = [1, 0.45, 0.25];  // on the device, the host, the disk
const FATE = ["#8a94a0", AGAIN, COPY];
const SHORT = ["compute", "CPU", "D → H", "H → D", "→ disk", "disk →"];
const ELSEWHERE = ["#3b6ea5", "#c9a227", "#8c6d31"];
const CAUSE = ["#c9a227", "#9467bd", "#17a2b8", "#6aa84f", "#4d5bd6", "#e78ac3", "#7f7f7f", "#c0392b"];
const ink = () => (dark.matches
  ? { text: "#e6e8eb", soft: "#98a1ac", line: "#333942", budget: "#ff8a80", ground: "#15181c" }
  : { text: "#1d2127", soft: "#626a75", line: "#dcdfe4", budget: "#b3261e", ground: "#fcfcfb" });

// ── head ────────────────────────────────────────────────────────────────────────────────────────

function head() {
  put("name", data.title);
  const over = figures.budget !== null && figures.peak > figures.budget;
  const fits = figures.budget === null ? `Peak ${bytes(figures.peak)}, no budget`
    : over ? "Does not fit" : `Fits in ${bytes(figures.budget)}`;
  const percent = (part) => `${(part * 100).toFixed(1)} %`;
  const beside = Math.abs(data.overhead) < 5e-4 ? "as fast as plain"
    : data.overhead > 0 ? `${percent(data.overhead)} slower than plain` : `in ${percent(-data.overhead)} less time than plain`;
  const proof = data.above === null ? "" : data.above < 5e-4 ? "; nothing is faster"
    : `; at most ${percent(data.above)} slower than the fastest there can be`;
  const verdict = document.getElementById("verdict");
  verdict.replaceChildren(element("b", fits, { className: over ? "bad" : "good" }),
    `, ${beside}${proof}.`);
  const share = figures.budget ? `${(100 * figures.peak / figures.budget).toFixed(1)} % of the budget` : "no budget";
  const rows = [
    ["time", seconds(figures.time), `plain ${seconds(figures.baseline_time)}`],
    ["peak on the device", bytes(figures.peak), share],
    ["plain peak", bytes(figures.baseline_peak), `saved ${bytes(figures.baseline_peak - figures.peak)}`],
    ["lower bound", figures.lower_bound === null ? "none" : seconds(figures.lower_bound), data.gap === null ? "" : `gap ${percent(data.gap)}, any order`],
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
const first = 0, last = Math.max(period, plain.end);
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

// ── drawing ─────────────────────────────────────────────────────────────────────────────────────

// From when to when, and from which row to which, the axes that are drawn on show.
function window_({ coordSys: { x, y, width, height } }, api) {
  const [left, top] = api.coord([0, 0]), [right, below] = api.coord([1, 1]);
  return { from: (x - left) / (right - left), to: (x + width - left) / (right - left),
    low: (y - top) / (below - top), high: (y + height - top) / (below - top) };
}
const rect = (x, y, width, height, fill) => ({ type: "rect", shape: { x, y, width, height }, style: { fill } });

// Per pixel column the moment with the most bytes, as stacked areas.
function stack(params, api) {
  const { from, to } = window_(params, api), left = Math.max(0, place(memory.at, from));
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
  return (params, api) => {
    const { from, to } = window_(params, api), points = [];
    let newest = -Infinity, last_ = 0;
    for (let k = Math.max(0, place(at, from)); k < at.length && at[k] <= to; k += 1) {
      const x = Math.round(api.coord([Math.max(from, at[k]), 0])[0]), y = api.coord([0, sizes[k]])[1];
      if (x === newest) points[points.length - 1][1] = Math.min(points[points.length - 1][1], y);
      else { if (points.length) points.push([newest, last_], [x, last_]); points.push([x, y]); }
      newest = x; last_ = y;
    }
    if (points.length) points.push([newest, last_], [api.coord([Math.min(to, end), 0])[0], last_]);
    return { type: "polyline", shape: { points }, style: { fill: "none", ...style } };
  };
}

// Steps of one queue and the waits before them. What is thinner than a pixel is put together by pixel: the
// colour with most of its time shows.
function lane({ rows, starts, ends }, row) {
  return (params, api) => {
    const { from, to } = window_(params, api), wide = [], thin = [];
    const height = api.size([0, 1])[1] * 0.72, y = api.coord([0, row])[1] - height / 2;
    let pixel = null, shares = new Map();
    const put_ = (begin, end, fill, waits) => {
      if (end < from || begin > to) return;
      const x = api.coord([Math.max(begin, from), row])[0], width = api.coord([Math.min(end, to), row])[0] - x;
      const before = wide[wide.length - 1];
      if (before && before.fill === fill && before.waits === waits && x - before.x - before.width < 0.5) { before.width = x + width - before.x; return; }
      if (width >= 1) { wide.push({ x, width, fill, waits }); return; }
      if (Math.floor(x) !== pixel) { shares = new Map(); pixel = Math.floor(x); thin.push({ x: pixel, shares }); }
      const share = shares.get(fill) ?? { width: 0, waits };
      share.width += width;
      shares.set(fill, share);
    };
    for (let i = Math.max(0, place(starts, from)); i < rows.length; i += 1) {
      const k = rows[i];
      if (starts[i] - steps.idle[k] > to) break;
      if (steps.cause[k] >= 0 && steps.queue[k] < 2) put_(Math.max(0, starts[i] - steps.idle[k]), starts[i], CAUSE[steps.cause[k]], true);
      put_(Math.max(0, starts[i]), Math.min(ends[i], period), colour(k), false);
    }
    const boxes = [];
    for (const { x, shares: parts } of thin) {
      const [fill, { waits }] = [...parts].reduce((most, part) => (part[1].width > most[1].width ? part : most));
      const newest = boxes[boxes.length - 1];
      if (newest && newest.fill === fill && newest.waits === waits && newest.x + newest.width === x) newest.width += 1;
      else boxes.push({ x, width: 1, fill, waits });
    }
    boxes.push(...wide);
    return { type: "group", children: boxes.map((b) => rect(b.x, b.waits ? y + height * 0.38 : y, b.width, b.waits ? height * 0.24 : height, b.fill)) };
  };
}
const colour = (k) => (steps.queue[k] > 1 ? COPY : steps.again[k] ? AGAIN : PHASE[operations.phase[steps.of[k]]]);

// A row a tensor, by when it is first there; where rows are thinner than a pixel the largest tensor shows.
function life(params, api) {
  const { from, to, low, high } = window_(params, api), children = [];
  const height = Math.abs(api.size([0, 1])[1]);
  let taken = -Infinity, best = -1;
  const draw = (k) => {
    const y = api.coord([0, k])[1] - height / 2, x = order[k];
    for (const [begin, end, where] of bars[k]) {
      if (end < from || begin > to) continue;
      const left = api.coord([Math.max(begin, from), k])[0], right = api.coord([Math.min(end, to), k])[0];
      const shape = rect(left, y, Math.max(right - left, 0.5), Math.max(height * 0.85, 1), FATE[tensors.fate[x]]);
      shape.style.opacity = PALE[where];
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
// What the schedule needs decides the height; of a plain curve far above it no more than this is seen.
const needed = Math.max(figures.peak, figures.budget ?? 0, 1), cut = figures.baseline_peak > 3 * needed;
let chart, sides = [0, 1];

// A time, with as many digits as the window needs.
function instant(value) {
  const [from, to] = [0, 1].map((side) => chart.convertFromPixel({ xAxisIndex: 0 }, sides[side]));
  const size = Math.max(Math.abs(from), Math.abs(to)), span = to - from;
  if (!(span < size / 20)) return seconds(value);
  const [unit, word] = size >= 1 ? [1, "s"] : size >= 1e-3 ? [1e-3, "ms"] : [1e-6, "µs"];
  return `${(value / unit).toFixed(Math.min(9, Math.max(0, Math.ceil(2 - Math.log10(span / unit)))))} ${word}`;
}

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
  sides = [left, holder.clientWidth - right];
  const axis = { axisLine: { lineStyle: { color: line } }, splitLine: { show: false }, axisLabel: { color: soft }, nameTextStyle: { color: soft } };
  const shared = heights.map((_, k) => k);
  const most = !cut ? Math.max(needed, figures.baseline_peak) : plain.bytes.some((size) => size < 2.8 * needed) ? 3 * needed : needed;
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
    xAxis: shared.map((k) => ({ ...axis, gridIndex: k, type: "value", min: first, max: last, axisLabel: { ...axis.axisLabel, formatter: instant, hideOverlap: true },
      axisPointer: { show: true, triggerTooltip: false, label: { show: k === 0, formatter: ({ value }) => instant(value) } } })),
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
      { type: "inside", xAxisIndex: shared, filterMode: "none", preventDefaultMouseMove: false },
      { type: "slider", xAxisIndex: shared, filterMode: "none", bottom: 4, height: 20, brushSelect: false, labelFormatter: (value) => instant(value), borderColor: line, textStyle: { color: soft } },
      { type: "slider", yAxisIndex: [2], filterMode: "none", right: 4, width: 12, top: tops[2], height: heights[2], showDetail: false, brushSelect: false, borderColor: line },
    ],
    series,
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
    if (fill === "plain") box.className = "dashed";
    made.append(box, word);
    return made;
  };
  const chosen = (words, fills, holds) => words.map((word, k) => [word, fills[k], k]).filter(([, , k]) => holds(k));
  const pale = (where) => COPY + Math.round(255 * PALE[where]).toString(16).padStart(2, "0");
  const plainWord = `plain, up to ${bytes(figures.baseline_peak)}${cut ? ", cut here" : ""}`;
  const stalls = steps.cause.filter((_, k) => steps.queue[k] < 2);
  const groups = {
    memory: [...chosen(data.kinds, KIND, (kind) => memory.sums[kind].some(Boolean)), [plainWord, "plain"]],
    queues: [
      ...chosen(data.phases, PHASE, (phase) => operations.phase.includes(phase)),
      ...(steps.again.includes(1) ? [["again", AGAIN]] : []),
      ...(queues.some(({ queue }) => queue > 1) ? [["copies", COPY]] : []),
      ...chosen(data.causes.map((word) => `waits for ${word}`), CAUSE, (cause) => stalls.includes(cause)),
    ],
    tensors: [...chosen(data.fates, FATE, (fate) => tensors.fate.includes(fate)),
      ...(lives.length > 1 ? [["pale: on the host", pale(1)]] : []), ...(figures.disk_peak ? [["paler: on disk", pale(2)]] : [])],
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
    const x = shownAt(height);
    if (x !== undefined) lines.push(`${tensors.name[x]}: ${bytes(tensors.bytes[x])}, ${data.kinds[tensors.kind[x]]}, ${data.fates[tensors.fate[x]]}${of(tensors.layer[x])}`);
  }
  let moment = place(memory.at, time);
  if (moment < 0) return;
  // What lasts no time is drawn, so it is told too.
  for (let k = moment; k >= 0 && memory.at[k] === memory.at[moment]; k -= 1) if (totals[k] > totals[moment]) moment = k;
  const parts = memory.sums.map((row, kind) => [row[moment], data.kinds[kind]]).filter(([size]) => size > 0).sort((a, b) => b[0] - a[0]);
  lines.push(`${instant(time)}: ${bytes(totals[moment])} on the device: ${parts.map(([size, word]) => `${word} ${bytes(size)}`).join(", ")}`);
  const there = copiesAt(time);
  const table = element("table");
  const titles = element("tr");
  for (const word of ["tensor", "bytes", "kind", "next reader"]) titles.append(element("th", word));
  table.append(titles);
  const most = innerHeight < 1000 ? 5 : 8;
  const named = (x) => {
    const cell = element("td", undefined, { className: "name" }), box = element("i");
    box.style.background = KIND[tensors.kind[x]];
    cell.append(box, tensors.name[x] + of(tensors.layer[x]));
    return cell;
  };
  for (const copy of there.slice(0, most)) {
    const { x } = copy, row = element("tr");
    row.append(named(x), element("td", bytes(tensors.bytes[x])), element("td", data.kinds[tensors.kind[x]]), element("td", nextReader(copy, time)));
    table.append(row);
  }
  const wide = element("div", undefined, { className: "wide" });
  wide.append(table);
  const more = there.length > most ? [element("p", `and ${there.length - most} more`, { className: "hint" })] : [];
  put("detail", ...lines.map((line) => element("p", line)), wide, ...more);
}
// The tensor that is drawn at a height: the largest of a pixel.
function shownAt(height) {
  const row = (k) => Math.floor(chart.convertToPixel({ gridIndex: 2 }, [0, k])[1]);
  const middle = Math.min(order.length - 1, Math.max(0, Math.round(height))), here = row(middle);
  let best = middle;
  for (const way of [-1, 1]) for (let k = middle + way; order[k] !== undefined && row(k) === here; k += way) {
    if (tensors.bytes[order[k]] > tensors.bytes[order[best]]) best = k;
  }
  return order[best];
}
// The copies on the device, the largest first. One that waits for its delete may be there beside the next.
function copiesAt(time) {
  const found = [];
  lives[0].tensor.forEach((x, k) => {
    let made = lives[0].start[k], gone = lives[0].end[k];
    do {
      if (made <= time && time < gone) found.push({ x, made, gone });
      made -= period; gone -= period;
    } while (gone > time && period > 0);
  });
  return found.sort((a, b) => tensors.bytes[b.x] - tensors.bytes[a.x]);
}
const of = (layer) => (layer ? ` (${layer})` : "");

function toldOfQueue({ rows, starts, ends }, time) {
  const i = place(starts, time), k = rows[Math.max(0, i)], next = rows[i + 1];
  if (i >= 0 && time <= ends[i]) {
    const compute = steps.queue[k] < 2, of_ = compute ? operations : tensors;
    const mode = steps.mode[k] ? `, mode ${steps.mode[k]}` : "";
    const what = compute ? `${data.phases[operations.phase[steps.of[k]]]}${steps.again[k] ? ", again" : ""}${mode}` : bytes(tensors.bytes[steps.of[k]]);
    return [`${of_.name[steps.of[k]]}: ${what}, ${seconds(steps.end[k] - steps.start[k])}${of(of_.layer[steps.of[k]])}`];
  }
  return next !== undefined && steps.cause[next] >= 0 ? [`stands still for ${seconds(steps.idle[next])}: waits for ${data.causes[steps.cause[next]]}`] : [];
}

// Who reads a copy on the device next, until it goes: a computation there, or a copy to elsewhere.
const runsOf = operations.name.map(() => []), copiesOf = tensors.name.map(() => []);
steps.queue.forEach((queue, k) => { if (queue === 0) runsOf[steps.of[k]].push(k); else if (queue === 2) copiesOf[steps.of[k]].push(k); });
function nextReader({ x, made, gone }, time) {
  const near = period * 1e-8;
  let best = null;
  for (const k of [...tensors.readers[x].flatMap((operation) => runsOf[operation]), ...copiesOf[x]]) for (const later of [-period, 0, period]) {
    const start = steps.start[k] + later;
    if (steps.end[k] + later > time && start > made - near && start < gone + near && (best === null || start < best.start)) best = { start, k };
  }
  if (best === null) return "nobody any more";
  const who = steps.queue[best.k] === 0 ? operations.name[steps.of[best.k]] : "a copy to the host";
  if (best.start <= time) return `${who}, now`;
  return `${who}, in ${seconds(best.start - time)}${best.start >= period ? ", in the next iteration" : ""}`;
}

// ── modules ─────────────────────────────────────────────────────────────────────────────────────

// Rows that open of themselves, and rows that are shown at a time.
const FEW = 16, MANY = 60;
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
      const children = [...node.children.values()];
      let below = row;
      const some = () => {
        for (const child of children.splice(0, MANY)) { const made = add(child, depth + 1, below); shown.push(made); below = made.end(); }
        if (!children.length) return;
        const rest = element("tr"), cell = element("td"), button = element("button", `… and ${children.length} more`, { className: "more" });
        cell.style.paddingLeft = `${(depth + 1) * 1.1}rem`;
        cell.append(button);
        rest.append(cell);
        below.after(rest);
        shown.push({ end: () => rest, remove: () => rest.remove() });
        button.addEventListener("click", () => { shown.pop().remove(); below = shown[shown.length - 1].end(); some(); });
      };
      some();
    };
    const close = () => { toggle.textContent = "▸"; for (const made of shown) made.remove(); shown = []; };
    if (node.children.size) {
      toggle.setAttribute("aria-label", `show what is in ${node.name}`);
      toggle.addEventListener("click", () => (shown.length ? close() : open()));
    }
    const made = { end: () => (shown.length ? shown[shown.length - 1].end() : row), remove: () => { close(); row.remove(); } };
    if (node.children.size && (depth === 0 || (depth === 1 && node.children.size <= FEW))) open();
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
  // Whole multiples of a power of two, so that the axis says round sizes.
  const budgets = [...data.bench.map(({ budget }) => budget), ...(figures.budget === null ? [] : [figures.budget])];
  const [least, most] = [Math.min(...budgets), Math.max(...budgets)], by = step(most - least, narrow.matches ? 3 : 8);
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
    xAxis: { ...axis, min: Math.floor(least / by) * by, max: (Math.floor(most / by) + 1) * by, interval: by, axisLabel: { color: soft, formatter: bytes, hideOverlap: true }, name: "budget", nameGap: 30 },
    yAxis: { ...axis, axisLabel: { color: soft, formatter: seconds } },
    series: [
      // A schedule fits in every larger budget, a bound holds for every smaller one.
      ...solvers.map((solver) => ({ name: solver, type: "line", step: "end", symbolSize: 7, data: line_(data.bench.filter((row) => row.solver === solver), "time") })),
      { name: "lower bound", type: "line", step: "start", symbolSize: 4, color: soft, lineStyle: { type: "dashed" }, data: [...bounds].sort((a, b) => a[0] - b[0]) },
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
  const shown = rows[0].map((_, column) => column < 3 || rows.slice(1).some((cells) => cells[column]));
  put("run", ...rows.map((cells, k) => {
    const row = element("tr");
    row.append(...cells.filter((_, column) => shown[column]).map((text) => element(k ? "td" : "th", text)));
    return row;
  }));
}

head();
legend();
modules();
measured();
bench();
draw();
tell(0, memory.at[totals.indexOf(Math.max(...totals))] ?? 0);
// The wheel alone is the page's: the picture is higher than many screens.
holder.addEventListener("wheel", (event) => { if (!event.ctrlKey && !event.metaKey) event.stopPropagation(); }, { capture: true, passive: true });
for (const query of [dark, narrow]) query.addEventListener("change", () => { draw(); bench(); });
addEventListener("resize", () => { chart.resize(); curve?.resize(); });
chart.getZr().flush();
document.body.dataset.ready = Math.round(performance.now());  // milliseconds since the page was asked for
})();
