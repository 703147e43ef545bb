// Charts: hovering shows values, dragging zooms. Keys do the same. The service draws every picture.

const svg = "http://www.w3.org/2000/svg";
const least = 1; // second that a zoom shows

/** Show another time in all charts of the page, which is fetched again; without arguments the whole time. */
function zoom(from, to) {
  const address = new URL(location.href);
  for (const name of ["from", "to"]) address.searchParams.delete(name);
  if (from !== undefined && to - from >= least) {
    address.searchParams.set("from", Math.max(from, 0).toFixed(3));
    address.searchParams.set("to", to.toFixed(3));
  } else if (from !== undefined || !new URL(location.href).searchParams.has("from")) {
    return;
  }
  history.replaceState(null, "", address);
  document.dispatchEvent(new Event("wattline-zoom"));
}

function makeMark(kind, className) {
  const mark = document.createElementNS(svg, kind);
  mark.setAttribute("class", className);
  mark.setAttribute(kind === "line" ? "y1" : "y", "0");
  mark.setAttribute(kind === "line" ? "y2" : "height", "1000");
  return mark;
}

/** Return the number of the point that is nearest to a time. */
function findNearest(points, at) {
  let low = 0;
  let high = points.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] <= at) low = middle;
    else high = middle;
  }
  return high >= 0 && Math.abs(points[high][0] - at) < Math.abs(points[low][0] - at) ? high : low;
}

function watch(chart) {
  const plot = chart.querySelector(".plot");
  const picture = plot?.querySelector("svg");
  if (!picture) return;
  const output = plot.querySelector(".hover");
  const data = JSON.parse(chart.dataset.chart);
  const span = data.end - data.start;
  const cursor = makeMark("line", "cursor");
  const selection = makeMark("rect", "selection");
  let shown = -1;
  let pressed = null;

  const findTime = (event) => {
    const box = picture.getBoundingClientRect();
    const share = (event.clientX - box.left) / box.width;
    return data.start + Math.min(Math.max(share, 0), 1) * span;
  };
  const place = (at) => (1000 * (at - data.start)) / span;

  function show(number) {
    if (!data.points.length) return;
    shown = Math.min(Math.max(number, 0), data.points.length - 1);
    const [at, value] = data.points[shown];
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, place(at));
    picture.append(cursor);
    const others = data.others
      .map((other) => [other.name, other.points[findNearest(other.points, at)]?.[1]])
      .filter((other) => other[1] !== null && other[1] !== undefined)
      .map((other) => `, ${other[0]} ${Number(other[1].toPrecision(6))} ${data.unit}`.trimEnd());
    output.textContent = `${data.labels[shown]}  ${value} ${data.unit}${others.join("")}`;
  }

  function hide() {
    cursor.remove();
    output.textContent = "";
    shown = -1;
  }

  picture.addEventListener("pointermove", (event) => {
    const at = findTime(event);
    if (pressed === null) {
      show(findNearest(data.points, at));
      return;
    }
    selection.setAttribute("x", place(Math.min(at, pressed)));
    selection.setAttribute("width", Math.abs(place(at) - place(pressed)));
    picture.append(selection);
  });
  picture.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    pressed = findTime(event);
    picture.setPointerCapture(event.pointerId);
  });
  picture.addEventListener("pointerup", (event) => {
    if (pressed === null) return;
    const [from, to] = [pressed, findTime(event)].sort((a, b) => a - b);
    pressed = null;
    selection.remove();
    if (to - from > span / 50) zoom(from, to);
  });
  picture.addEventListener("pointercancel", () => {
    pressed = null;
    selection.remove();
  });
  picture.addEventListener("pointerleave", hide);
  picture.addEventListener("dblclick", () => zoom());
  plot.addEventListener("blur", hide);
  plot.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const centre = shown < 0 ? data.start + span / 2 : data.points[shown][0];
    const step = event.shiftKey ? 10 : 1;
    if (event.key === "ArrowRight") show(shown < 0 ? 0 : shown + step);
    else if (event.key === "ArrowLeft") show(shown < 0 ? data.points.length - 1 : shown - step);
    else if (event.key === "+" || event.key === "=") zoom(centre - span / 4, centre + span / 4);
    else if (event.key === "-") zoom(centre - span, centre + span);
    else if (event.key === "0") zoom();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
}

/** Watch the charts within an element. */
export function watchCharts(within) {
  for (const chart of within.querySelectorAll("[data-chart]")) watch(chart);
}
