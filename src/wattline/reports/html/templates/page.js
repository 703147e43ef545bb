"use strict";
// Draws the figures, which are JSON in the page, in the page's colours, and again when those change.
const figures = JSON.parse(document.getElementById("figures").textContent);
// No button that sends data to a server, and only actions that the mouse alone cannot do.
const SETTINGS = {
  displaylogo: false,
  displayModeBar: "hover",
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
  responsive: true,
};
const chooser = document.getElementById("run");

function themed(layout) {
  const css = getComputedStyle(document.documentElement);
  const ink = css.getPropertyValue("--ink").trim();
  const line = css.getPropertyValue("--line").trim();
  const card = css.getPropertyValue("--card").trim();
  const result = { ...layout, font: { ...layout.font, color: ink, family: "system-ui, sans-serif" } };
  const soft = css.getPropertyValue("--soft").trim();
  result.modebar = { bgcolor: "rgba(0,0,0,0)", color: soft, activecolor: ink };
  result.hoverlabel = { ...layout.hoverlabel, bgcolor: card, bordercolor: line, font: { color: ink } };
  for (const key of Object.keys(layout).filter((name) => /^[xy]axis/.test(name))) {
    result[key] = { gridcolor: line, linecolor: line, ...layout[key] };
  }
  return result;
}

// Labels beside points are placed for a wide window; in a narrow one a legend replaces them.
function narrowed(layout) {
  if (innerWidth >= 700) return layout;
  const result = { ...layout, font: { ...layout.font, size: 11 }, margin: { ...layout.margin, l: 48, r: 10 } };
  if (!layout.meta?.legendWhereNarrow) return result;
  return { ...result, annotations: [], showlegend: true, legend: { orientation: "h", y: -0.25 } };
}

function draw(place, name) {
  const figure = figures[name];
  return Plotly.react(place, figure.data, themed(narrowed(figure.layout)), SETTINGS);
}

function drawAll() {
  const drawn = [];
  for (const place of document.querySelectorAll(".plot")) {
    drawn.push(draw(place, place.dataset.figure));
  }
  return Promise.all(drawn);
}

if (chooser) {
  chooser.addEventListener("change", () => {
    const place = document.querySelector('.plot[data-figure^="nodes-"]');
    place.dataset.figure = chooser.value;
    draw(place, chooser.value);
  });
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
matchMedia("(max-width: 699px)").addEventListener("change", drawAll);
drawAll().then(() => { document.body.dataset.ready = "yes"; });
