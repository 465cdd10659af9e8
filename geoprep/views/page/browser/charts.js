// The histograms: values of every band, and road pixels per speed.
const BAND_COLOURS = {
  red: "#d9483b", green: "#2f9e5b", blue: "#3b76d9", nir: "#a1478f", nir1: "#a1478f", nir2: "#7a3f8f",
  yellow: "#c79a1b", "red edge": "#b5533c", coastal: "#2e8fb0", pan: "#7b8492",
};
const SPARE = ["#3b76d9", "#d9483b", "#2f9e5b", "#a1478f", "#c79a1b", "#2e8fb0", "#7a3f8f", "#7b8492"];

function frame(parent, title) {
  const width = parent.clientWidth || 360, height = parent.clientHeight || 250;
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  parent.replaceChildren(svg);
  return { svg, width, height, base: height - 20 };
}

function axis(chart, ticks) {
  chart.svg.append(draw("line", { class: "axis", x1: 0, x2: chart.width, y1: chart.base + 0.5, y2: chart.base + 0.5 }));
  for (const [x, text, anchor] of ticks)
    chart.svg.append(draw("text", { x, y: chart.base + 15, "text-anchor": anchor || "middle" }, text));
}

function drawBands() {
  const chart = frame($("bands"), "Histogram of every band");
  const names = DATA.facts.statistics.map((band) => band.band);
  const colours = names.map((name, i) => BAND_COLOURS[name.toLowerCase()] || SPARE[i % SPARE.length]);
  const totals = DATA.bands.map((counts) => counts.reduce((a, b) => a + b, 0));
  // Saturated values at both ends would flatten all else.
  const shares = DATA.bands.map((counts, i) => counts.map((count) => count / (totals[i] || 1)));
  const highest = 1.06 * Math.max(1e-9, ...shares.map((band) => Math.max(...band.slice(1, -1))));
  const x = (value) => (chart.width * value) / 255, y = (part) => chart.base * (1 - Math.min(1, part / highest));
  axis(chart, [0, 64, 128, 192, 255].map((value) => [x(value), value, value === 0 ? "start" : value === 255 ? "end" : "middle"]));
  shares.forEach((band, i) => {
    const line = band.map((part, at) => `${x(at + 1).toFixed(1)},${y(part).toFixed(1)}`).join("L");
    chart.svg.append(
      draw("path", { d: `M${x(1)},${chart.base}L${line}L${x(255)},${chart.base}Z`, fill: colours[i], opacity: 0.13 }),
      draw("path", { d: `M${line}`, fill: "none", stroke: colours[i], "stroke-width": 1.6, "stroke-linejoin": "round" }),
    );
  });
  keyed($("bands-key"), DATA.facts.statistics.map((band, i) => [
    colours[i], band.mean === null ? `${band.band}: nothing to train on` : `${band.band} ${number(band.mean)} ± ${number(band.std)}`,
  ]));
}

// Speeds one by one, or by bins where there are too many to tell apart.
function speedBars() {
  if (DATA.speeds.length <= 16) return DATA.speeds.map((one) => ({ ...one, label: String(one.mph) }));
  const bins = new Map();
  for (const one of DATA.speeds) bins.set(one.bin, (bins.get(one.bin) || 0) + one.pixels);
  return [...bins].map(([bin, pixels]) => ({ bin, pixels, label: DATA.legend.bins[bin].label }));
}

function drawSpeeds() {
  const chart = frame($("speeds"), DATA.words.chart), bars = speedBars();
  const total = bars.reduce((sum, bar) => sum + bar.pixels, 0);
  const highest = Math.max(1, ...bars.map((bar) => bar.pixels)), step = chart.width / (bars.length || 1);
  const wide = Math.min(56, 0.78 * step), top = 18;
  axis(chart, bars.map((bar, i) => [(i + 0.5) * step, bar.label]));
  bars.forEach((bar, i) => {
    const tall = Math.max(1, ((chart.base - top) * bar.pixels) / highest), middle = (i + 0.5) * step;
    const box = draw("rect", {
      x: middle - wide / 2, y: chart.base - tall, width: wide, height: tall, rx: 3,
      fill: DATA.legend.bins[bar.bin].colour, stroke: "rgb(0 0 0 / 18%)", "stroke-width": 0.7,
    });
    box.append(draw("title", {}, `${bar.bin ? `${bar.label}${DATA.words.unit}` : DATA.words.unknown}: ${share(bar.pixels / total)} of the ${DATA.words.pixels}`));
    chart.svg.append(box);
    if (step > 26) chart.svg.append(draw("text", { x: middle, y: chart.base - tall - 5, "text-anchor": "middle" }, bar.pixels < total / 200 ? "< 1 %" : `${number((100 * bar.pixels) / total)} %`));
  });
  $("speeds-note").textContent = total ? DATA.words.note : DATA.words.none;
}

function drawCharts() {
  drawBands();
  drawSpeeds();
}
