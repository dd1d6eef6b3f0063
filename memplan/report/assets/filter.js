// Rows of a table of GPUs by name, time and price; a click on a head sorts by its column.
const UNITS = { "µs": 1e-6, ms: 1e-3, s: 1, B: 1, KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40 };
const amount = (text) => {
  const [number, unit] = text.replace(/[≤≥,]/g, "").trim().split(" ");
  return parseFloat(number) * (UNITS[unit] ?? 1);
};
for (const form of document.querySelectorAll("form.filter")) {
  const table = form.nextElementSibling.querySelector("table"), [head, ...rows] = table.rows;
  const at = (name) => [...head.cells].findIndex((cell) => cell.textContent === name);
  const shown = (row) => [...form.querySelectorAll("input")].every((field) => {
    if (!field.value.trim()) return true;
    const text = row.cells[at(field.name)].textContent;
    if (field.type === "search") return field.value.toLowerCase().split(/[\s,]+/).filter(Boolean).some((word) => text.toLowerCase().includes(word));
    const wanted = parseFloat(field.value), value = amount(text);
    return field.dataset.most ? value <= wanted : value >= wanted;
  });
  const count = form.querySelector("output");
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => {
    for (const row of rows) row.hidden = !shown(row);
    count.textContent = `${rows.filter((row) => !row.hidden).length} of ${rows.length}`;
  });
  let sorted = -1;
  head.addEventListener("click", (event) => {
    const column = event.target.cellIndex, way = sorted === column ? -1 : 1;
    const key = (row) => amount(row.cells[column].textContent);
    const order = (a, b) => {
      const [x, y] = [key(a), key(b)];
      if (Number.isNaN(x) && Number.isNaN(y)) return way * a.cells[column].textContent.localeCompare(b.cells[column].textContent);
      return Number.isNaN(x) - Number.isNaN(y) || way * (x - y);
    };
    table.tBodies[0].append(...rows.sort(order));
    sorted = way === 1 ? column : -1;
  });
}
