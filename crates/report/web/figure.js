// From a figure to ECharts options: for the page, and for drawing without a browser.
// A figure is { title, chart, columns, rows }; see `Chart` in src/figure.rs.
"use strict";

const LOOKS = {
  light: {
    ink: "#22272e", soft: "#5b6470", line: "#d6dae0", paper: "#ffffff",
    series: ["#0072b2", "#d55e00", "#009e73", "#b5539c", "#b98900", "#3f9bd8", "#7a5195", "#6b6b6b"],
    heat: ["#dcebf8", "#7fb8e0", "#2171b5", "#08306b"],
  },
  dark: {
    ink: "#e4e7eb", soft: "#a2abb7", line: "#3a424d", paper: "#1b2027",
    series: ["#58b0ec", "#ff8f4a", "#3fd0a4", "#e58fce", "#e8bd3f", "#9bd3ff", "#b79be0", "#b5b5b5"],
    heat: ["#17324d", "#2d75b5", "#7cc0f5", "#f1f8ff"],
  },
};
const DASHES = ["solid", [6, 3], [2, 2]];

/** 1234567 as 1.23M, for axes; with more digits 1.235M. */
function short(value, digits = 3) {
  const size = Math.abs(value);
  for (const [unit, name] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (size >= unit) {
      const scale = unit === 1e4 ? 1e3 : unit;
      return String(+(value / scale).toPrecision(digits)) + name;
    }
  }
  return String(+value.toPrecision(digits + 1));
}

/** Digits with which numbers in order are told apart, for axes that begin far from 0. */
function digitsFor(numbers) {
  const isAlike = (digits) => numbers.some((number, at) =>
    at > 0 && number !== numbers[at - 1] && short(number, digits) === short(numbers[at - 1], digits));
  let digits = 3;
  while (digits < 16 && isAlike(digits)) digits++;
  return digits;
}

/** 1234567 as 1,234,567, for tool tips. */
function full(value) {
  if (value === null || value === undefined || value === "") return "–";
  if (typeof value !== "number") return String(value);
  if (!Number.isInteger(value)) return String(+value.toPrecision(5));
  return String(value).replace(/\B(?=(\d{3})+$)/g, ",");
}

function escaped(text) {
  return String(text).replace(/[&<>"']/g, (c) => "&#" + c.charCodeAt(0) + ";");
}

/** The options of a figure. `look` is { dark, narrow, still }. */
function optionsOf(figure, look) {
  const colors = LOOKS[look.dark ? "dark" : "light"];
  const option = figure.chart.kind === "map" ? map(figure, look, colors) : lines(figure, look, colors);
  return Object.assign(option, {
    animation: false,
    aria: { enabled: true, label: { description: figure.title + ". " + figure.reading } },
    backgroundColor: look.still ? colors.paper : "transparent",
    textStyle: { fontFamily: "sans-serif", color: colors.ink },
  });
}

function axis(spec, colors, extra) {
  return Object.assign({
    name: spec.name,
    nameLocation: "middle",
    nameGap: 28,
    nameTextStyle: { color: colors.soft },
    type: spec.scale === "log" ? "log" : "value",
    axisLabel: { color: colors.soft, hideOverlap: true, formatter: (value) => short(value) },
    axisLine: { lineStyle: { color: colors.line } },
    axisTick: { lineStyle: { color: colors.line } },
    splitLine: { lineStyle: { color: colors.line, opacity: 0.6 } },
  }, extra);
}

function tooltip(colors, extra) {
  return Object.assign({
    confine: true,
    backgroundColor: colors.paper,
    borderColor: colors.line,
    textStyle: { color: colors.ink, fontSize: 12 },
  }, extra);
}

function legend(look, colors) {
  return {
    // Without a browser, words are measured as narrower than they are.
    itemGap: look.still ? 26 : 10,
    type: "scroll", top: 0, left: 0, right: 0, itemWidth: 22, itemHeight: 10,
    textStyle: { color: colors.ink }, pageTextStyle: { color: colors.soft },
    pageIconColor: colors.ink, pageIconInactiveColor: colors.line,
  };
}

function lines(figure, look, colors) {
  const chart = figure.chart;
  const axes = [chart.y].concat(chart.y_right ? [chart.y_right] : []);
  const series = chart.series.map((line, place) => {
    const isBound = line.column === "opt";
    const color = isBound ? colors.ink : colors.series[place % colors.series.length];
    const type = isBound ? [2, 3] : DASHES[Math.floor(place / colors.series.length) % DASHES.length];
    return {
      name: line.label,
      type: "line",
      encode: { x: chart.x.column, y: line.column },
      yAxisIndex: line.right ? 1 : 0,
      stack: chart.stacked ? "all" : undefined,
      areaStyle: chart.stacked ? { opacity: 0.55 } : undefined,
      step: chart.steps ? "end" : false,
      connectNulls: true,
      showSymbol: figure.rows.length < 40,
      symbolSize: 4,
      color: color,
      lineStyle: { width: chart.stacked ? 1 : 1.8, type: type },
      emphasis: { focus: "series", disabled: look.narrow },
    };
  });
  const zoom = !look.still && figure.rows.length > 30;
  return {
    dataset: { dimensions: figure.columns, source: figure.rows },
    legend: series.length > 1 ? legend(look, colors) : undefined,
    grid: {
      top: series.length > 1 ? 44 : 16, left: 6, right: chart.y_right ? 6 : 18,
      bottom: zoom ? 44 : 6, outerBoundsMode: "same",
    },
    tooltip: tooltip(colors, {
      trigger: "axis",
      formatter: (points) => {
        const x = points[0].axisValue;
        const rows = points
          .map((point) => ({ point, line: chart.series[point.seriesIndex] }))
          .map(({ point, line }) => [point, point.value[figure.columns.indexOf(line.column)]])
          .filter(([, value]) => value !== null && value !== undefined)
          .map(([point, value]) => point.marker + escaped(point.seriesName) + " <b>" + full(value) + "</b>");
        return escaped(chart.x.name) + " <b>" + full(x) + "</b><br>" + rows.join("<br>");
      },
    }),
    dataZoom: zoom ? [{
      type: "slider", xAxisIndex: 0, height: 18, bottom: 8, left: 40, right: 40,
      showDetail: false, brushSelect: false, borderColor: colors.line,
      textStyle: { color: colors.soft },
    }] : undefined,
    xAxis: axis(chart.x, colors, { min: "dataMin", max: "dataMax", splitLine: { show: false } }),
    yAxis: axes.map((spec, place) => axis(spec, colors, {
      nameGap: 44, min: spec.scale === "log" ? undefined : 0, max: spec.max,
      splitLine: { show: place === 0, lineStyle: { color: colors.line, opacity: 0.6 } },
    })),
    series: series,
  };
}

function map(figure, look, colors) {
  const chart = figure.chart;
  const classes = chart.classes;
  // Counts differ by orders of magnitude: the shade follows their root.
  const cells = figure.rows.map((row) => [row[0], row[1], row[2], Math.sqrt(row[2])]);
  const marks = chart.y_marks && new Set(chart.y_marks);
  const stepOf = (names) => Math.ceil(names.length / 12);
  const step = stepOf(chart.y_names);
  const isMarked = (place) => marks ? marks.has(place) : place % step === 0;
  const label = (names) => {
    const digits = digitsFor(names.filter((name, place) =>
      typeof name === "number" && place % stepOf(names) === 0));
    return (value, place) => {
      const name = names[place];
      return typeof name === "number" ? short(name, digits) : name;
    };
  };
  const category = (spec, names, extra) => Object.assign(axis(spec, colors), {
    type: "category", data: names.map(String), splitLine: { show: false }, splitArea: { show: false },
  }, extra);
  const visualMap = classes ? {
    type: "piecewise", dimension: 2, top: 0, left: 0, orient: "horizontal", itemWidth: 14,
    itemHeight: 10, textStyle: { color: colors.ink },
    pieces: classes.map((name, place) => ({
      value: place, label: name, color: colors.series[place % colors.series.length],
    })),
  } : {
    type: "continuous", dimension: 3, min: 0, max: Math.sqrt(chart.most), orient: "horizontal", top: 0, left: 0,
    itemWidth: 12, itemHeight: 110, text: [short(chart.most), chart.value + " 1"],
    textStyle: { color: colors.soft }, inRange: { color: colors.heat },
  };
  return {
    grid: { top: 44, left: 6, right: 18, bottom: 6, outerBoundsMode: "same" },
    tooltip: tooltip(colors, {
      formatter: ({ value }) => {
        const rows = [
          [chart.x.name, chart.x_names[value[0]]], [chart.y.name, chart.y_names[value[1]]],
          classes ? ["class", classes[value[2]]] : [chart.value, value[2]],
        ];
        return rows.map(([name, of]) => escaped(name) + " <b>" + escaped(full(of)) + "</b>").join("<br>");
      },
    }),
    visualMap: visualMap,
    xAxis: category(chart.x, chart.x_names, {
      axisLabel: { color: colors.soft, hideOverlap: true, formatter: label(chart.x_names) },
    }),
    yAxis: category(chart.y, chart.y_names, {
      nameGap: look.narrow ? 62 : 92,
      axisLabel: {
        color: colors.soft, hideOverlap: true, width: look.narrow ? 54 : 84, overflow: "truncate",
        formatter: label(chart.y_names), interval: isMarked,
      },
    }),
    series: [{
      type: "heatmap", data: cells, progressive: 20000, animation: false,
      itemStyle: { borderWidth: 0 }, emphasis: { disabled: true },
    }],
  };
}
