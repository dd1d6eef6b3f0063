// The chart: its axes and series, and the legend above it.

const holder = document.getElementById("chart");
// What the schedule needs decides the height; of a baseline curve far above it no more than this is seen.
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
  const most = !cut ? Math.max(needed, figures.baseline_peak) : baseline.bytes.some((size) => size < 2.8 * needed) ? 3 * needed : needed;
  const mostElsewhere = elsewhere.reduce((size, curve) => Math.max(size, ...curve.bytes), 1);
  const series = [
    { name: "memory", z: 2, xAxisIndex: 0, yAxisIndex: 0, renderItem: stack },
    { name: "baseline", z: 1, xAxisIndex: 0, yAxisIndex: 0, renderItem: outline(baseline, { stroke: soft, lineDash: [3, 3] }) },
    ...queues.map((queue, row) => ({ name: queue.name, z: 2, xAxisIndex: 1, yAxisIndex: 1, renderItem: lane(queue, queues.length - 1 - row) })),
    { name: "lives", z: 2, xAxisIndex: 2, yAxisIndex: 2, renderItem: life },
    ...elsewhere.map((curve, k) => ({ name: curve.name, z: 2, xAxisIndex: 3, yAxisIndex: 3, renderItem: outline(curve, { stroke: ELSEWHERE[k % ELSEWHERE.length], lineWidth: k ? 1.5 : 5, opacity: k ? 1 : 0.45 }) })),
  ].map((each) => ({ type: "custom", data: [0], clip: true, silent: true, animation: false, encode: { x: -1, y: -1 }, ...each }));
  if (figures.budget !== null) series[0].markLine = { silent: true, symbol: "none", animation: false, data: [{ yAxis: figures.budget }],
    lineStyle: { color: budget, type: "solid" }, label: { formatter: `budget ${(figures.arena ?? 0) > figures.budget ? "of live bytes " : ""}${bytes(figures.budget)}`, position: "insideEndTop", color: budget } };
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
      ...(elsewhere.length ? [{ ...axis, gridIndex: 3, type: "value", min: 0, max: mostElsewhere * 1.35, interval: step(mostElsewhere, 3),
        axisLabel: { ...axis.axisLabel, formatter: bytes, showMaxLabel: false } }] : []),
    ],
    graphic: [...[[0, "device memory"], [3, `memory elsewhere: ${elsewhere.map(({ name }) => name).join(", ")}`]].filter(([k]) => k < tops.length).map(([k, title]) => (
      { type: "text", silent: true, left: left + 6, top: tops[k] + 3, z: 9, style: { text: title, fill: text, font: "12px system-ui, sans-serif", width: sides[1] - left - 12, overflow: "truncate" } })), ...queues.map(({ name, queue }, row) => ({ type: "text", silent: true, left: 4, top: tops[1] + (row + 0.5) * heights[1] / queues.length - 6,
      style: { text: narrow.matches ? SHORT[queue] : name, fill: soft, font: "12px system-ui, sans-serif", width: left - 8, overflow: "truncate" } }))],
    axisPointer: { link: [{ xAxisIndex: "all" }], lineStyle: { color: soft } },
    dataZoom: [
      { type: "inside", xAxisIndex: shared, filterMode: "none", preventDefaultMouseMove: false },
      { type: "slider", xAxisIndex: shared, filterMode: "none", bottom: 4, height: 20, brushSelect: false, labelFormatter: (value) => instant(value), borderColor: line, textStyle: { color: soft } },
      { type: "slider", yAxisIndex: [2], filterMode: "none", right: 4, width: 12, top: tops[2], height: heights[2], showDetail: false, brushSelect: false, borderColor: line },
    ],
    series,
  });
  const showMoment = (event) => {
    const point = [event.offsetX, event.offsetY];
    const grid = heights.findIndex((_, k) => chart.containPixel({ gridIndex: k }, point));
    if (grid >= 0) tell(grid, ...chart.convertFromPixel({ gridIndex: grid }, point));
  };
  chart.getZr().on("mousemove", showMoment);
  chart.getZr().on("click", showMoment);
}

function legend() {
  const entry = ([word, fill]) => {
    const made = element("span"), box = element("i");
    box.style.background = fill;
    if (fill === "baseline") box.className = "dashed";
    made.append(box, word);
    return made;
  };
  const chosen = (words, fills, holds) => words.map((word, k) => [word, fills[k % fills.length], k]).filter(([, , k]) => holds(k));
  const pale = (where) => COPY + Math.round(255 * PALE[where]).toString(16).padStart(2, "0");
  const baselineWord = `baseline, up to ${bytes(figures.baseline_peak)}${cut ? ", cut here" : ""}`;
  const stalls = steps.cause.filter((_, k) => steps.queue[k] < 2);
  const groups = {
    memory: [...chosen(data.kinds, KIND, (kind) => memory.sums[kind].some(Boolean)), [baselineWord, "baseline"]],
    queues: [
      ...chosen(data.phases, PHASE, (phase) => operations.phase.includes(phase)),
      ...(steps.recomputed.includes(1) ? [["recomputed", RECOMPUTED]] : []),
      ...(queues.some(({ queue }) => queue > 1) ? [["transfers", COPY]] : []),
      ...chosen(data.causes.map((word) => `waits for ${word}`), CAUSE, (cause) => stalls.includes(cause)),
    ],
    tensors: [...chosen(data.fates, FATE, (fate) => tensors.fate.includes(fate)),
      ...(lives.length > 1 ? [["pale: on the host", pale(1)]] : []), ...peaksBelow.map(([name, , where]) => [`paler: on ${name}`, pale(where)])],
    elsewhere: elsewhere.map(({ name }, k) => [name, ELSEWHERE[k % ELSEWHERE.length]]),
  };
  put("legend", ...Object.entries(groups).filter(([, entries]) => entries.length).map(([name, entries]) => {
    const line = element("div");
    line.append(element("b", name), ...entries.map(entry));
    return line;
  }));
}
