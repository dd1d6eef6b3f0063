// Shapes in a window of time. They are put together per pixel of the window that is looked at, so a picture of ten
// thousand steps costs what one of a thousand pixels does, and is exact once zoomed in.

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
      if (steps.cause[k] >= 0 && steps.queue[k] < 2) put_(Math.max(0, starts[i] - steps.idle[k]), starts[i], CAUSE[steps.cause[k] % CAUSE.length], true);
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
const colour = (k) => (steps.queue[k] > 1 ? COPY : steps.recomputed[k] ? RECOMPUTED : PHASE[operations.phase[steps.of[k]]]);

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
