// Below the chart: what each module costs, and time against budget.

// ── modules ─────────────────────────────────────────────────────────────────────────────────────

// Rows that open of themselves, and rows that are shown at a time.
const FEW = 16, MANY = 60;
const FIGURES = ["time", "recompute", "copied", "peak"];
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
  for (const word of ["module", "time", "share", "recompute", "transfers", "at the peak"]) titles.append(element("th", word));
  table.append(titles);
  const add = (node, depth, after) => {
    while (node.children.size === 1 && depth) {
      const [only] = node.children.values();
      node = { ...only, name: `${node.name}.${only.name}` };
    }
    const row = element("tr"), name = element("td", undefined, { className: "name" });
    name.style.paddingLeft = `${depth * 1.1}rem`;
    const [time, recompute, copied, peak] = node.sums;
    row.append(name, ...[seconds(time + recompute), `${(100 * (time + recompute) / (root.sums[0] + root.sums[1] || 1)).toFixed(1)} %`, recompute ? seconds(recompute) : "", copied ? bytes(copied) : "", peak ? bytes(peak) : ""].map((text) => element("td", text)));
    if (after) after.after(row); else table.append(row);
    const toggle = element(node.children.size ? "button" : "span", node.children.size ? "▸" : "");
    name.append(toggle, ` ${breakable(node.name)}`);
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

// ── time against budget ──────────────────────────────────────────────────────────────────────────

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
      ...(figures.budget === null ? [] : [{ name: "this schedule", type: "scatter", symbol: "diamond", symbolSize: 14, color: RECOMPUTED, data: [[figures.budget, figures.time]] }]),
    ],
  });
}
