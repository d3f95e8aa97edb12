// Draws a report's figures, and gives out their data.
"use strict";

const figures = JSON.parse(document.getElementById("figures").textContent);
const darkness = matchMedia("(prefers-color-scheme: dark)");
const drawn = new Map();

function draw(figure) {
  const place = document.getElementById("chart-" + figure.id);
  if (!place) return;
  const narrow = place.clientWidth < 520;
  const old = drawn.get(figure.id);
  if (old) old.chart.dispose();
  const chart = echarts.init(place, null, { renderer: "canvas" });
  chart.setOption(optionsOf(figure, { dark: darkness.matches, narrow: narrow, still: false }));
  drawn.set(figure.id, { chart: chart, narrow: narrow });
}

/** One figure after the other, so that the page answers in between. */
function drawFrom(place) {
  if (place === figures.length) {
    document.documentElement.dataset.drawn = String(drawn.size);
    return;
  }
  draw(figures[place]);
  setTimeout(drawFrom, 0, place + 1);
}

function give(name, type, text) {
  const link = document.createElement("a");
  link.href = type === "" ? text : URL.createObjectURL(new Blob([text], { type: type }));
  link.download = name;
  link.click();
  if (type !== "") setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function csv(figure) {
  const field = (value) => {
    const text = value === null ? "" : String(value);
    return /[",\r\n]/.test(text) ? '"' + text.replace(/"/g, '""') + '"' : text;
  };
  return [figure.columns].concat(figure.rows).map((row) => row.map(field).join(",") + "\n").join("");
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-give]");
  if (!button) return;
  const figure = figures.find((figure) => figure.id === button.dataset.figure);
  const name = figure.id + "." + button.dataset.give;
  if (button.dataset.give === "csv") give(name, "text/csv", csv(figure));
  if (button.dataset.give === "json") give(name, "application/json", JSON.stringify(figure));
  if (button.dataset.give === "png") {
    const look = { pixelRatio: 2, backgroundColor: LOOKS[darkness.matches ? "dark" : "light"].paper };
    give(name, "", drawn.get(figure.id).chart.getDataURL(Object.assign({ type: "png" }, look)));
  }
});

let resizing;
addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => {
    for (const figure of figures) {
      const entry = drawn.get(figure.id);
      if (!entry) continue;
      const place = document.getElementById("chart-" + figure.id);
      if (place.clientWidth < 520 !== entry.narrow) draw(figure);
      else entry.chart.resize();
    }
  }, 100);
});
darkness.addEventListener("change", () => figures.forEach((figure) => drawn.has(figure.id) && draw(figure)));
drawFrom(0);
