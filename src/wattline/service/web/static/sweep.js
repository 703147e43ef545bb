// Parallel coordinates of a sweep on a canvas; the table beside it has the same values.

import { base, confirmAction, notify, send, visible } from "./api.js";

const canvas = document.getElementById("parallel");
const block = document.getElementById("sweep-data");

function draw(chosen) {
  const data = JSON.parse(block.textContent);
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = 280;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.font = "12px system-ui, sans-serif";
  const [top, bottom, side] = [34, height - 22, Math.min(70, width / 8)];
  const axes = data.axes.map((name, at) => {
    const values = data.lines.map((line) => line.values[at]).filter((value) => value !== null && value !== undefined);
    const numbers = values.every((value) => typeof value === "number");
    const words = numbers ? [] : [...new Set(values.map(String))].sort();
    const [low, high] = numbers && values.length ? [Math.min(...values), Math.max(...values)] : [0, Math.max(words.length - 1, 1)];
    const logarithmic = numbers && low > 0 && high / low > 50;
    const scale = (value) => (logarithmic ? Math.log(value) : value);
    const x = side + ((width - 2 * side) * at) / Math.max(data.axes.length - 1, 1);
    const y = (value) => {
      if (value === null || value === undefined) return null;
      const number = numbers ? scale(value) : words.indexOf(String(value));
      const [from, to] = numbers ? [scale(low), scale(high)] : [0, Math.max(words.length - 1, 1)];
      return to === from ? (top + bottom) / 2 : bottom - ((bottom - top) * (number - from)) / (to - from);
    };
    return { name, x, y, numbers, low, high, words, logarithmic };
  });
  const metric = data.metric ? data.axes.indexOf(data.metric) : -1;
  const results = metric < 0 ? [] : data.lines.map((line) => line.values[metric]).filter((value) => typeof value === "number");
  const best = results.length ? (data.highest ? Math.max(...results) : Math.min(...results)) : null;
  for (const line of data.lines) {
    const isBest = best !== null && line.values[metric] === best;
    pen.strokeStyle = isBest ? colour("--accent") : colour("--link");
    pen.globalAlpha = isBest || line.id === chosen ? 1 : Math.max(0.15, Math.min(0.6, 30 / data.lines.length));
    pen.lineWidth = isBest || line.id === chosen ? 3 : 1.2;
    pen.beginPath();
    let open = false;
    axes.forEach((axis, at) => {
      const y = axis.y(line.values[at]);
      if (y === null) open = false;
      else if (open) pen.lineTo(axis.x, y);
      else {
        pen.moveTo(axis.x, y);
        open = true;
      }
    });
    pen.stroke();
  }
  pen.globalAlpha = 1;
  pen.strokeStyle = colour("--soft");
  pen.fillStyle = colour("--ink");
  pen.lineWidth = 1;
  axes.forEach((axis, at) => {
    pen.beginPath();
    pen.moveTo(axis.x, top);
    pen.lineTo(axis.x, bottom);
    pen.stroke();
    pen.textAlign = at === 0 ? "left" : at === axes.length - 1 ? "right" : "center";
    const x = axis.x + (at === 0 ? -side / 2 : at === axes.length - 1 ? side / 2 : 0);
    const room = (width - 2 * side) / Math.max(axes.length - 1, 1);
    pen.fillStyle = colour("--ink");
    const unit = data.units[at] ? ` (${data.units[at]})` : "";
    pen.fillText(visible(axis.name).slice(0, 24) + unit + (axis.logarithmic ? " (log)" : ""), x, 13, room);
    pen.fillStyle = colour("--soft");
    const ends = axis.numbers ? [axis.low, axis.high].map((value) => Number(value.toPrecision(4))) : [axis.words[0] ?? "", axis.words.at(-1) ?? ""];
    pen.fillText(visible(String(ends[1])).slice(0, 16), x, 28, room);
    pen.fillText(visible(String(ends[0])).slice(0, 16), x, height - 6, room);
  });
  return { axes, data };
}

if (canvas && block) {
  let drawn = draw();
  addEventListener("resize", () => (drawn = draw()));
  document.getElementById("theme")?.addEventListener("click", () => setTimeout(() => (drawn = draw()), 0));
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    let at = 0;
    drawn.axes.forEach((axis, number) => {
      if (Math.abs(axis.x - x) < Math.abs(drawn.axes[at].x - x)) at = number;
    });
    let best = null;
    for (const line of drawn.data.lines) {
      const height = drawn.axes[at].y(line.values[at]);
      if (height !== null && (best === null || Math.abs(height - y) < best.distance)) best = { line, distance: Math.abs(height - y) };
    }
    if (!best) return;
    draw(best.line.id);
    const text = drawn.data.axes.map((name, number) => `${name} ${best.line.values[number] ?? "–"} ${drawn.data.units[number]}`.trim()).join(", ");
    document.getElementById("parallel-text").textContent = visible(`job ${best.line.id}: ${text}`);
  });
}

document.getElementById("cancel-sweep")?.addEventListener("click", async (event) => {
  const sweep = event.target.dataset.sweep;
  if (!(await confirmAction(`Cancel all jobs of sweep ${sweep} that have not ended?`))) return;
  try {
    const answer = await send("POST", "/jobs/actions", { action: "cancel", select: { sweep } });
    notify(`${answer.changed} cancelled`);
    location.assign(`${base}/sweeps/${sweep}`);
  } catch (error) {
    notify(error.message);
  }
});
