// One figure as SVG text, without a browser.
"use strict";

// ECharts puts off what a still picture does not need, such as showing a tool tip.
function setTimeout() { return 0; }
function clearTimeout() {}

function drawStill(text, width, height) {
  const chart = echarts.init(null, null, { renderer: "svg", ssr: true, width: width, height: height - 34 });
  const figure = JSON.parse(text);
  chart.setOption(optionsOf(figure, { dark: false, narrow: width < 520, still: true }));
  const inner = chart.renderToSVGString();
  chart.dispose();
  const colors = LOOKS.light;
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" ` +
    `viewBox="0 0 ${width} ${height}"><rect width="100%" height="100%" fill="${colors.paper}"/>` +
    `<text x="10" y="22" font-family="sans-serif" font-size="15" font-weight="bold" ` +
    `fill="${colors.ink}">${escaped(figure.title)}</text>` +
    `<g transform="translate(0 34)">${inner}</g></svg>\n`;
}
