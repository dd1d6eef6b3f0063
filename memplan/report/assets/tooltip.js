// The tooltip of a moment: what runs, what is resident, which operation reads it next.

function tell(grid, time, height) {
  const lines = [];
  if (grid === 1) {
    const queue = queues[queues.length - 1 - Math.round(height)];
    if (queue) lines.push(...linesOfQueue(queue, time));
  } else if (grid === 2) {
    const x = shownAt(height);
    if (x !== undefined) lines.push(`${tensors.name[x]}: ${bytes(tensors.bytes[x])}, ${data.kinds[tensors.kind[x]]}, ${data.fates[tensors.fate[x]]}${of(tensors.layer[x])}`);
  }
  let moment = place(memory.at, time);
  if (moment < 0) return;
  // What lasts no time is drawn, so it is named too.
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
    cell.append(box, breakable(tensors.name[x] + of(tensors.layer[x])));
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

function linesOfQueue({ rows, starts, ends }, time) {
  const i = place(starts, time), k = rows[Math.max(0, i)], next = rows[i + 1];
  if (i >= 0 && time <= ends[i]) {
    const compute = steps.queue[k] < 2, of_ = compute ? operations : tensors;
    const mode = steps.mode[k] ? `, mode ${steps.mode[k]}` : "";
    const what = compute ? `${data.phases[operations.phase[steps.of[k]]]}${steps.recomputed[k] ? ", recomputed" : ""}${mode}` : bytes(tensors.bytes[steps.of[k]]);
    return [`${of_.name[steps.of[k]]}: ${what}, ${seconds(steps.end[k] - steps.start[k])}${of(of_.layer[steps.of[k]])}`];
  }
  return next !== undefined && steps.cause[next] >= 0 ? [`idle for ${seconds(steps.idle[next])}: waits for ${data.causes[steps.cause[next]]}`] : [];
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
  if (best === null) return "none";
  const who = steps.queue[best.k] === 0 ? breakable(operations.name[steps.of[best.k]]) : "a copy to the host";
  if (best.start <= time) return `${who}, now`;
  return `${who}, in ${seconds(best.start - time)}${best.start >= period ? ", in the next iteration" : ""}`;
}
