// The figures: the head of the page, planned and measured. And what is done when it opens.

function head() {
  put("name", data.title);
  // With addresses the budget may be one of live bytes, found for an arena of the size that was asked for.
  const inArena = (figures.arena ?? 0) > (figures.budget ?? Infinity), size = inArena ? figures.arena : figures.budget;
  const fits = size === null ? `Peak ${bytes(figures.peak)}, no budget` : `Fits in ${bytes(size)}`;
  const percent = (part) => `${(part * 100).toFixed(1)} %`;
  const beside = Math.abs(data.overhead) < 5e-4 ? "as fast as the baseline"
    : data.overhead > 0 ? `${percent(data.overhead)} slower than the baseline` : `in ${percent(-data.overhead)} less time than the baseline`;
  const proof = data.above === null ? "" : data.above < 5e-4 ? "; nothing is faster"
    : `; at most ${percent(data.above)} slower than the fastest there can be`;
  put("verdict", element("b", fits), `, ${beside}${proof}.`);
  put("limits", ...data.limits.filter((line) => line).map((line) => element("p", line)));
  put("next", ...(data.next ?? []).flatMap(([label, command]) => {
    const line = element("dd");
    line.append(element("code", command));
    return [element("dt", label), line];
  }));
  const share = size ? `${(100 * figures.peak / size).toFixed(1)} % of the ${inArena ? "arena" : "budget"}` : "no budget";
  const rows = [
    ["time", seconds(figures.time), `baseline ${seconds(figures.baseline_time)}`],
    ["peak on the device", bytes(figures.peak), share],
    ["baseline peak", bytes(figures.baseline_peak), `saved ${bytes(figures.baseline_peak - figures.peak)}`],
    ["lower bound", figures.lower_bound === null ? "none" : seconds(figures.lower_bound), data.gap === null ? "" : `gap ${percent(data.gap)}, any order${data.bound_by ? `, by ${data.bound_by}, not checked` : ""}`],
  ];
  if (figures.arena) rows.push(["arena", bytes(figures.arena), "with the gaps between addresses"]);
  data.fates.forEach((word, fate) => {
    const chosen = tensors.bytes.filter((_, x) => tensors.fate[x] === fate);
    if (fate && chosen.length) rows.push([`tensors ${word}`, `${chosen.length} of ${tensors.fate.length}`, `${bytes(chosen.reduce((a, b) => a + b))} in all`]);
  });
  if (figures.host_peak) rows.push(["host", bytes(figures.host_peak), `pinned ${bytes(figures.pinned_peak)}`]);
  for (const [name, peak] of peaksBelow) rows.push([name, bytes(peak), ""]);
  put("figures", ...rows.map(([label, value, more]) => {
    const box = element("div"), line = element("dd", value);
    line.append(element("small", more));
    box.append(element("dt", label), line);
    return box;
  }));
  put("origin", ...data.origin.map((line) => element("div", line)));
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
