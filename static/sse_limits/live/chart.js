/* The one chart: uPlot with colours from the page's variables, made anew when the theme changes.
   Stacked areas over time; stepped ones hold for the span that ends at their time. The legend shows values at the cursor. */

const AXIS_FONT = "11px ";
const SYNC = "sse_limits";
let utcOffset = 0;
const charts = new Map();

const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const shown = (value, digits) => value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });

function clock(seconds) {
  const time = new Date((seconds + utcOffset) * 1000);
  return `${String(time.getUTCHours()).padStart(2, "0")}:${String(time.getUTCMinutes()).padStart(2, "0")}`;
}

/** Where the server's clock stands. */
export function setUtcOffset(seconds) {
  utcOffset = seconds;
}

/** Draw a chart, or give a drawn one its new values. */
export function draw(element, data) {
  const known = charts.get(element);
  if (known && known.data.series.length === data.series.length) {
    known.data = data;
    known.plot.setData(columns(data));
  } else {
    known?.plot.destroy();
    charts.set(element, { data, plot: build(element, data) });
  }
  legend(element, charts.get(element).plot.cursor.idx);
}

/** Draw every chart anew: colours have changed. */
export function redraw() {
  for (const [element, known] of charts) {
    known.plot.destroy();
    known.plot = build(element, known.data);
  }
}

/* The tallest sum first: the lower ones are painted over it. */
function columns({ times, series, cap }) {
  let below = times.map(() => 0);
  const sums = series.map(([, , values]) => (below = below.map((sum, position) => sum + values[position])));
  return [times, ...sums.reverse(), ...(cap === null ? [] : [times.map(() => cap)])];
}

function build(element, data) {
  const quiet = css("--body-quiet-color");
  const axis = { stroke: quiet, font: AXIS_FONT + getComputedStyle(document.body).fontFamily, ticks: { show: false } };
  const lines = data.series.map(([name]) => line(name, data)).reverse();
  const limit = { stroke: quiet, width: 1, dash: [4, 4], points: { show: false } };
  const widest = data.cap ?? Math.max(...data.times.map((_, i) => data.series.reduce((sum, [, , values]) => sum + values[i], 0)), 1);
  return new uPlot(
    {
      width: element.clientWidth,
      height: element.clientHeight,
      padding: [8, 8, 0, 0],
      legend: { show: false },
      series: [{}, ...lines, ...(data.cap === null ? [] : [limit])],
      scales: { y: { range: (_, low, high) => [0, Math.max((data.cap ?? high) * (data.cap ? 1.04 : 1.1), 1)] } },
      axes: [
        { ...axis, grid: { show: false }, size: 24, gap: 4, space: 90, values: (_, times) => times.map(clock) },
        { ...axis, grid: { stroke: css("--hairline-color"), width: 1 }, size: widest >= 1000 ? 46 : 32, gap: 4, space: 34, values: (_, values) => values.map(value => shown(value, value % 1 ? 1 : 0)) },
      ],
      cursor: { y: false, points: { show: false }, drag: { x: false, y: false }, sync: { key: SYNC } },
      hooks: { setCursor: [plot => legend(element, plot.cursor.idx)] },
    },
    columns(data),
    element,
  );
}

function line(name, { stepped }) {
  const colour = css({ SSE: "--sl-fill", WebSocket: "--sl-fill-2" }[name] ?? `--r-${name}`);
  const edge = stepped ? css("--body-bg") : css("--sl-fill");
  return { stroke: edge, width: stepped ? 1 : 1.25, fill: colour, points: { show: false }, paths: stepped ? uPlot.paths.stepped({ align: -1 }) : undefined };
}

function legend(element, position) {
  const known = charts.get(element);
  if (!known) return;
  const list = document.querySelector(`[data-legend="${element.dataset.chart}"]`);
  const { series, digits, times } = known.data;
  series.forEach(([, , values], index) => {
    const value = values[position ?? times.length - 1] ?? 0;
    const item = list.children[index];
    item.classList.toggle("z", !value);
    item.querySelector("b").textContent = shown(value, digits);
  });
}

new ResizeObserver(() => {
  for (const [element, { plot }] of charts) {
    if (element.clientWidth) plot.setSize({ width: element.clientWidth, height: element.clientHeight });
  }
}).observe(document.getElementById("content"));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });
