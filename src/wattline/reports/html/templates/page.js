"use strict";
// Sorting and copying of tables, values under the pointer, the choice of a run, and light or dark.

const tip = document.getElementById("tip");

function parseNumber(cell) {
  if (cell.dataset.v !== undefined) return parseFloat(cell.dataset.v);
  const match = cell.textContent.replaceAll(",", "").replaceAll("−", "-").match(/^[^0-9-]*(-?[0-9.]+(?:e[-+]?[0-9]+)?)\s*(\S*)/);
  if (!match) return NaN;
  const unit = { min: 60, h: 3600, d: 86400, ms: 0.001, kJ: 1e3, MJ: 1e6, GJ: 1e9, Wh: 3.6e3, kWh: 3.6e6, MWh: 3.6e9, kW: 1e3 }[match[2]];
  return parseFloat(match[1]) * (unit || 1);
}

function sortTable(table, column, descending) {
  const rows = [...table.tBodies[0].rows];
  const keys = new Map(rows.map((row) => [row, parseNumber(row.cells[column])]));
  const text = (row) => row.cells[column].textContent.trim();
  const numeric = rows.filter((row) => !Number.isNaN(keys.get(row))).length * 2 > rows.length && column > 0;
  rows.sort((a, b) => {
    if (!numeric) return (descending ? -1 : 1) * text(a).localeCompare(text(b), undefined, { numeric: true });
    const [x, y] = [keys.get(a), keys.get(b)];
    if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y); // unknown values last
    return descending ? y - x : x - y;
  });
  table.tBodies[0].append(...rows);
}

for (const table of document.querySelectorAll("table.data")) {
  for (const [column, head] of [...table.tHead.rows[0].cells].entries()) {
    const button = document.createElement("button");
    button.type = "button";
    button.title = "sort";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const descending = head.getAttribute("aria-sort") === "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      sortTable(table, column, descending);
    });
  }
  const copy = document.createElement("button");
  copy.type = "button";
  copy.className = "quiet copy";
  copy.textContent = "copy table";
  copy.addEventListener("click", () => {
    const lines = [...table.rows].map((row) => [...row.cells].map((cell) => cell.textContent.trim()).join("\t"));
    const area = document.createElement("textarea"); // works for files, too, where the clipboard API does not
    area.value = lines.join("\n") + "\n";
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    copy.textContent = done ? "copied" : "copying is not allowed here";
    setTimeout(() => { copy.textContent = "copy table"; }, 2000);
  });
  table.parentElement.before(copy);
}

// -- values under the pointer

function readAxis(text) {
  const [start, end, low, high, log] = text.split(" ").map(Number);
  const [from, to] = log ? [Math.log10(low), Math.log10(high)] : [low, high];
  return {
    start, end,
    value(pixel) {
      const at = from + ((pixel - start) / (end - start)) * (to - from);
      return log ? 10 ** at : at;
    },
  };
}

const points = new WeakMap();
function readPath(path) { // corners of a path of M, L, H and V, in pixels
  if (points.has(path)) return points.get(path);
  const found = [];
  let x = 0, y = 0;
  for (const [, verb, numbers] of path.getAttribute("d").matchAll(/([MLHV])([^MLHV]*)/g)) {
    const values = numbers.trim().split(/\s+/).map(Number);
    if (verb === "H") x = values[0];
    else if (verb === "V") y = values[0];
    else [x, y] = values;
    found.push([x, y]);
  }
  points.set(path, found);
  return found;
}

function findValue(path, x) { // the y of the last corner that is not right of x
  const corners = readPath(path);
  if (!corners.length || x < corners[0][0] || x > corners.at(-1)[0]) return null;
  let low = 0, high = corners.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (corners[middle][0] <= x) low = middle; else high = middle - 1;
  }
  return corners[low][1];
}

function show(text, event) {
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 6))}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - box.height - 6))}px`;
}

function format(value) {
  return Math.abs(value) >= 1e5 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4)));
}

function describe(svg, event) {
  const mark = event.target.closest("[data-t]");
  if (mark) return mark.dataset.t;
  const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
  for (const panel of svg.querySelectorAll(".panel")) {
    const x = readAxis(panel.dataset.x), y = readAxis(panel.dataset.y);
    const [top, bottom] = [Math.min(y.start, y.end), Math.max(y.start, y.end)];
    if (place.x < x.start || place.x > x.end || place.y < top || place.y > bottom) continue;
    const at = `${panel.dataset.xTitle}: ${format(x.value(place.x))}`;
    if (panel.dataset.rows !== undefined) {
      const rows = panel.dataset.rows.split("|");
      return `${rows[Math.min(rows.length - 1, Math.floor(((place.y - top) / (bottom - top)) * rows.length))]}\n${at}`;
    }
    const lines = [];
    for (const path of panel.querySelectorAll("path[data-line]")) {
      const pixel = findValue(path, place.x);
      if (pixel !== null) lines.push(`${path.dataset.line || panel.dataset.yTitle}: ${format(y.value(pixel))}`);
    }
    return lines.length ? [at, panel.dataset.yTitle, ...lines].join("\n") : "";
  }
  return "";
}

for (const svg of document.querySelectorAll("svg.chart")) {
  svg.addEventListener("pointermove", (event) => show(describe(svg, event), event));
  svg.addEventListener("pointerleave", () => { tip.hidden = true; });
}

const chooser = document.getElementById("run");
if (chooser) {
  chooser.addEventListener("change", () => {
    for (const plot of document.querySelectorAll('.plot[data-figure^="nodes-"]')) {
      plot.hidden = plot.dataset.figure !== chooser.value;
    }
  });
}

document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
document.body.dataset.ready = "yes";
