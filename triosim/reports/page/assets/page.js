"use strict";
// Draws the page's charts with ECharts from the values in #data. Times are nanoseconds in the timeline, seconds elsewhere.

const data = JSON.parse(document.getElementById("data").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const charts = [];

const units = [[1, "s"], [1e-3, "ms"], [1e-6, "us"], [1e-9, "ns"]];
function seconds(value, digits = 3) {
  const [scale, unit] = units.find(([size]) => Math.abs(value) >= size) || [1e-9, "ns"];
  return value === 0 ? "0 s" : `${Number((value / scale).toPrecision(digits))} ${unit}`;
}
function bytes(value) {
  const power = value > 0 ? Math.min(4, Math.floor(Math.log2(value) / 10)) : 0;
  return `${Number((value / 2 ** (10 * power)).toPrecision(3))} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}
// The distance of an axis's labels, so that they are round in the units of `bytes`.
function bytesStep(most) {
  const unit = 2 ** (10 * Math.floor(Math.log2(Math.max(1, most)) / 10)), rough = most / unit / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  return unit * power * [1, 2, 5, 10].find((step) => step * power >= rough);
}
const percent = (value) => `${Number((100 * value).toPrecision(3))}%`;
function escaped(text) {
  const span = document.createElement("span");
  span.textContent = String(text);
  return span.innerHTML;
}
// The room that the labels of a vertical axis take.
const widest = () => Math.min(310, 0.4 * innerWidth - 10);  // of a chart's labels
const roomOf = (labels) => Math.min(widest() + 10, 16 + 6.4 * Math.max(...labels.map((label) => label.length), 4));
const ink = () => getComputedStyle(document.documentElement).getPropertyValue("--ink");
const faint = () => getComputedStyle(document.documentElement).getPropertyValue("--line");
const paper = () => getComputedStyle(document.documentElement).getPropertyValue("--paper");

// A chart is made anew when the colour scheme changes; `draw(chart)` sets its options.
function addChart(id, height, draw) {
  const box = document.getElementById(id);
  if (!box) return;
  box.style.height = `${height}px`;
  const made = { chart: null };
  const make = () => {
    if (made.chart) made.chart.dispose();
    made.chart = echarts.init(box, dark.matches ? "dark" : null, { renderer: "canvas" });
    draw(made.chart);
  };
  make();
  charts.push(made);
  dark.addEventListener("change", make);
  return made;
}
addEventListener("resize", () => charts.forEach((made) => made.chart.resize()));

const base = () => ({ backgroundColor: "transparent", animation: false, textStyle: { fontFamily: "system-ui, sans-serif" },
  aria: { enabled: true } });

// ---- the timeline --------------------------------------------------------------------------------------------------

const KINDS = { ...Object.fromEntries(["forward", "backward", "optimizer", "communication", "host computation"].map((kind) => [kind, data.colours[kind]])),
  waiting: data.colours["waiting for a partner"], other: "#CCBB44", several: "#8899AA" };

// Each track holds the starts (ascending) and ends of its slices, which do not overlap.
function unpacked(track) {
  const count = track.starts.length, starts = new Float64Array(count), ends = new Float64Array(count);
  let now = 0;
  for (let index = 0; index < count; index++) {
    now += track.starts[index];
    starts[index] = now;
    ends[index] = now + track.lasts[index];
  }
  const waits = new Map(track.waits.map(([slice, lasts, rank]) => [slice, { lasts, rank }]));
  return { label: track.label, starts, ends, whats: Uint32Array.from(track.whats), waits };
}

// Return the index of the first slice that ends after a time.
function firstAfter(ends, time) {
  let low = 0, high = ends.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ends[middle] > time) high = middle; else low = middle + 1;
  }
  return low;
}

// Many rectangles, or lines with arrow heads, of one colour: one path each, which a canvas fills at once.
echarts.graphic.registerShape("rectangles", echarts.graphic.extendShape({ shape: { all: [] },
  buildPath(path, { all }) { for (const [x, y, width, height] of all) path.rect(x, y, width, height); } }));
echarts.graphic.registerShape("lines", echarts.graphic.extendShape({ shape: { all: [] },
  buildPath(path, { all }) {
    for (const [from, to] of all) {
      path.moveTo(...from);
      path.lineTo(...to);
    }
  } }));
echarts.graphic.registerShape("heads", echarts.graphic.extendShape({ shape: { all: [] },
  buildPath(path, { all }) {
    const size = 6;
    for (const [from, to] of all) {
      const lean = Math.atan2(to[1] - from[1], to[0] - from[0]);
      path.moveTo(...to);
      for (const turn of [0.4, -0.4]) path.lineTo(to[0] - size * Math.cos(lean + turn), to[1] - size * Math.sin(lean + turn));
      path.closePath();
    }
  } }));

const MOST_NAMES = 400, MOST_ARROWS = 400;

class Timeline {
  constructor(recorded) {
    this.end = recorded.end_ns;
    this.whats = recorded.whats;
    this.kinds = this.whats.map(([, kind]) => (kind in KINDS ? kind : "other"));
    this.tracks = recorded.tracks.map(unpacked);
    this.arrows = recorded.arrows;
    this.range = [0, this.end];
    this.found = [];
    this.matches = null;
    this.at = -1;
    this.box = document.getElementById("timeline");
    this.height = Math.min(900, 70 + 24 * this.tracks.length);
    this.pointer = [0, 0];
    this.view = null;
    this.made = addChart("timeline", this.height, (chart) => this.draw(chart));
    this.listen();
  }

  // Return where times and tracks are in the picture: `x` of a time, and the `middle` of each track.
  viewOf(area, api) {
    const [left] = api.coord([0, 0]), [right] = api.coord([this.end, 0]), scale = (right - left) / this.end;
    const middles = this.tracks.map((_, row) => api.coord([0, row])[1]);
    return { area, scale, left, middles, thick: Math.min(18, 0.8 * api.size([0, 1])[1]),
      from: (area.x - left) / scale, to: (area.x + area.width - left) / scale };
  }

  // Call `use` with each rectangle that is seen: slices narrower than a pixel are taken together, so that a million of them
  // draw as quickly as a thousand.
  eachSeen(view, use) {
    const { from, to, scale, left, area, thick } = view, pixel = 1 / scale;
    this.tracks.forEach((track, row) => {
      const { starts, ends } = track, top = view.middles[row] - thick / 2;
      if (top < area.y - 1 || top + thick > area.y + area.height + 1) return;
      let index = firstAfter(ends, from);
      while (index < starts.length && starts[index] < to) {
        const first = index, start = starts[index];
        let end = ends[index];
        if (end - start < 1.5 * pixel) {
          while (index + 1 < starts.length && ends[index + 1] - start < 2 * pixel) end = ends[++index];
        }
        const x = Math.max(area.x, left + start * scale), until = Math.min(area.x + area.width, left + end * scale);
        const width = until - x;
        use(row, first, index, [x, top, width > 4 ? width - 1 : Math.max(1, width), thick]); // with a gap, where there is room
        index++;
      }
    });
  }

  isMatch(row, first, last) {
    if (!this.matches) return true;
    for (let index = first; index <= last; index++) if (this.matches.has(this.tracks[row].whats[index])) return true;
    return false;
  }

  // Return all that is seen as a few parts, one for each colour; always the same ones, since ECharts changes them in place.
  picture(params, api) {
    const view = this.view = this.viewOf(params.coordSys, api), { area, scale, left } = view;
    const clear = {}, pale = {}, names = [];
    for (const kind of Object.keys(KINDS)) [clear[kind], pale[kind]] = [[], []];
    this.eachSeen(view, (row, first, last, box) => {
      const { whats, waits, starts } = this.tracks[row], kind = this.kinds[whats[first]];
      const colours = this.isMatch(row, first, last) ? clear : pale;
      colours[last > first && this.kinds[whats[last]] !== kind ? "several" : kind].push(box);
      if (last > first) return;
      const wait = waits.get(first);
      if (wait) {
        const until = Math.min(left + (starts[first] + wait.lasts) * scale, area.x + area.width);
        if (until > box[0]) colours.waiting.push([box[0], box[1], until - box[0], box[3]]);
      }
      if (box[2] >= 40 && names.length < MOST_NAMES) names.push([this.whats[whats[first]][0], box]);
    });
    const arrows = this.seenArrows(view);
    const parts = Object.keys(KINDS).flatMap((kind) => [[clear, 1], [pale, 0.15]].map(([colours, opacity]) => ({ type: "rectangles",
      silent: true, shape: { all: colours[kind] }, style: { fill: KINDS[kind], opacity }, z2: kind === "waiting" ? 2 : 1 })));
    const labels = names.map(([text, [x, y, width, height]]) => ({ type: "text", silent: true, x: x + 3, y: y + height / 2, z2: 3,
      style: { text, fill: "#10151a", fontSize: 10, width: width - 6, overflow: "truncate", verticalAlign: "middle" } }));
    return { type: "group", children: [
      { type: "rect", shape: { ...area }, style: { fill: "transparent" } }, // is what the pointer is over
      { type: "group", silent: true, children: parts },
      { type: "group", silent: true, $mergeChildren: false, children: labels },
      { type: "lines", silent: true, shape: { all: arrows }, style: { stroke: ink(), lineWidth: 1, opacity: 0.7, fill: null }, z2: 4 },
      { type: "heads", silent: true, shape: { all: arrows }, style: { fill: ink(), opacity: 0.7 }, z2: 4 }] };
  }

  seenArrows({ from, to, left, scale, middles }) {
    const seen = this.arrows.filter(([, sent, , received]) => received >= from && sent <= to);
    if (seen.length > MOST_ARROWS) return [];
    return seen.map(([a, sent, b, received]) => [[left + sent * scale, middles[a]], [left + received * scale, middles[b]]]);
  }

  draw(chart) {
    chart.getZr().on("mousemove", ({ offsetX, offsetY }) => { this.pointer = [offsetX, offsetY]; });
    chart.setOption({ ...base(), aria: { enabled: false },
      tooltip: { confine: true, formatter: () => this.tip(...this.pointer) },
      grid: { left: roomOf(this.tracks.map((track) => track.label)), right: 20, top: 8, bottom: 56 },
      xAxis: { type: "value", min: 0, max: this.end, axisLabel: { formatter: (at) => seconds(at / 1e9, 6), hideOverlap: true },
        splitLine: { lineStyle: { color: faint() } } },
      yAxis: { type: "category", inverse: true, data: this.tracks.map((track) => track.label), axisTick: { show: false },
        axisLabel: { fontSize: 11, width: widest(), overflow: "truncate" } },
      dataZoom: [
        { type: "inside", xAxisIndex: 0, filterMode: "none", startValue: this.range[0], endValue: this.range[1] },
        { type: "slider", xAxisIndex: 0, filterMode: "none", bottom: 8, height: 22, startValue: this.range[0],
          endValue: this.range[1], labelFormatter: (at) => seconds(at / 1e9) },
        ...(this.tracks.length > 40 ? [{ type: "slider", yAxisIndex: 0, right: 0, width: 14, filterMode: "none", startValue: 0,
          endValue: 33, showDetail: false }] : []),
      ],
      series: [
        { type: "custom", id: "slices", renderItem: (params, api) => this.picture(params, api), clip: true,
          encode: { x: 0, y: 1 }, data: [[0, 0]], emphasis: { disabled: true } },
      ],
    });
    chart.on("datazoom", () => {
      this.range = [this.view.from, this.view.to];
      this.box.dataset.range = this.range.map(Math.round).join(" ");
    });
  }

  show(from, to) {
    const width = Math.min(this.end, Math.max(10, to - from));
    const start = Math.max(0, Math.min(this.end - width, from));
    this.range = [start, start + width];
    this.made.chart.dispatchAction({ type: "dataZoom", dataZoomIndex: 0, startValue: start, endValue: start + width });
  }

  zoom(factor) {
    const [from, to] = this.range, middle = (from + to) / 2, half = ((to - from) * factor) / 2;
    this.show(middle - half, middle + half);
  }

  // Return what the slices at a place are, and nothing where there are none.
  tip(x, y) {
    const { left, scale, middles, thick } = this.view, pixel = 1 / scale, time = (x - left) / scale;
    const row = middles.findIndex((middle) => Math.abs(middle - y) <= thick / 2);
    if (row < 0) return "";
    const track = this.tracks[row], slice = firstAfter(track.ends, time - pixel), start = track.starts[slice];
    if (slice >= track.starts.length || start > time + pixel) return "";
    let last = slice;
    while (track.starts[last + 1] < time + pixel) last++;
    if (last > slice && track.ends[slice] - start < 1.5 * pixel) {
      return `${escaped(track.label)}<br><b>${last - slice + 1} slices</b>, zoom in to tell them apart<br>` +
        seconds((track.ends[last] - start) / 1e9);
    }
    const at = track.ends[slice] > time || last === slice ? slice : slice + 1;
    const [name, kind, detail] = this.whats[track.whats[at]], wait = track.waits.get(at);
    const lines = [`<b>${escaped(name)}</b>`, escaped(track.label), `${escaped(kind)}${detail ? `, ${escaped(detail)}` : ""}`,
      `${seconds((track.ends[at] - track.starts[at]) / 1e9)} from ${seconds(track.starts[at] / 1e9)}`];
    if (wait) lines.push(`of which waiting ${seconds(wait.lasts / 1e9)}${wait.rank === null ? "" : ` for rank ${wait.rank}`}`);
    return lines.join("<br>");
  }

  search(text) {
    const wanted = text.trim().toLowerCase();
    this.matches = null;
    this.found = [];
    this.at = -1;
    if (wanted) {
      this.matches = new Set();
      this.whats.forEach(([name, , detail], index) => {
        if (`${name} ${detail}`.toLowerCase().includes(wanted)) this.matches.add(index);
      });
      this.tracks.forEach((track, row) => track.whats.forEach((what, slice) => {
        if (this.matches.has(what)) this.found.push([track.starts[slice], track.ends[slice], row, slice]);
      }));
      this.found.sort((one, other) => one[0] - other[0]);
    }
    document.getElementById("found").textContent = wanted ? `${this.found.length.toLocaleString("en")} found` : "";
    this.made.chart.setOption({ series: [{ id: "slices", data: [[0, 0]] }] });
  }

  next(step) {
    if (!this.found.length) return;
    this.at = (this.at + step + this.found.length) % this.found.length;
    const [start, end, row, slice] = this.found[this.at], margin = Math.max(4 * (end - start), this.end / 2000);
    this.show(start - margin, end + margin);
    const [name] = this.whats[this.tracks[row].whats[slice]];
    document.getElementById("found").textContent =
      `${this.at + 1} of ${this.found.length.toLocaleString("en")}: ${name} on ${this.tracks[row].label}, ${seconds((end - start) / 1e9)}`;
  }

  listen() {
    const input = document.getElementById("search");
    input.addEventListener("input", () => this.search(input.value));
    input.addEventListener("keydown", (event) => { if (event.key === "Enter") this.next(event.shiftKey ? -1 : 1); });
    const actions = { "zoom-in": () => this.zoom(0.5), "zoom-out": () => this.zoom(2), "zoom-all": () => this.show(0, this.end),
      "next": () => this.next(1), "previous": () => this.next(-1) };
    for (const [id, act] of Object.entries(actions)) document.getElementById(id).addEventListener("click", act);
    const pan = (share) => () => {
      const [from, to] = this.range, by = share * (to - from);
      this.show(from + by, to + by);
    };
    const keys = { ArrowLeft: pan(-0.2), ArrowRight: pan(0.2), "+": actions["zoom-in"], "=": actions["zoom-in"], "-": actions["zoom-out"],
      Home: actions["zoom-all"], n: actions.next, p: actions.previous, "/": () => input.focus() };
    this.box.addEventListener("keydown", (event) => {
      const act = keys[event.key];
      if (!act || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      act();
    });
  }
}

// ---- memory over time ----------------------------------------------------------------------------------------------

const colourOf = (category) => data.colours[category] || "#DDDDDD";

function drawMemory(chart) {
  const recorded = data.memory_curve;
  chart.setOption({ ...base(),
    title: { text: `GPU ${recorded.ranks}: ${bytes(recorded.peak_bytes)} at the peak`, left: 0,
      textStyle: { fontSize: 12, fontWeight: "normal" } },
    tooltip: { trigger: "axis", valueFormatter: bytes, confine: true }, legend: { type: "scroll", top: 26, left: 0 },
    grid: { left: 76, right: 24, top: 60, bottom: 48 },
    xAxis: { type: "value", max: recorded.times[recorded.times.length - 1], axisLabel: { formatter: (value) => seconds(value), hideOverlap: true } },
    yAxis: { type: "value", interval: bytesStep(recorded.peak_bytes), axisLabel: { formatter: bytes, showMaxLabel: false } },
    dataZoom: [{ type: "inside", filterMode: "none" }, { type: "slider", filterMode: "none", height: 18, bottom: 8, labelFormatter: (value) => seconds(value) }],
    series: Object.entries(recorded.categories).map(([name, values]) => ({ type: "line", stack: "memory", step: "end", name,
      symbol: "none", lineStyle: { width: 0 }, areaStyle: { opacity: 0.9 }, itemStyle: { color: colourOf(name) },
      data: recorded.times.map((time, index) => [time, values[index]]) })),
  });
}

// ---- links ---------------------------------------------------------------------------------------------------------

const HEAT = ["#FEE9A0", "#FD8D3C", "#E31A1C", "#800026"];
// One colour means one load everywhere; the root tells small loads apart.
const heatOf = (load) => (load > 0 ? echarts.color.lerp(Math.sqrt(Math.min(1, load)), HEAT) : faint());
const HEAT_SCALE = Array.from({ length: 41 }, (_, step) => heatOf(Math.max(1e-6, step / 40)));

class Links {
  constructor(recorded) {
    this.recorded = recorded;
    this.slot = null;
    this.graph = recorded.drawing ? addChart("link-graph", recorded.drawing.height, (chart) => this.drawGraph(chart)) : null;
    addChart("link-raster", 120 + 18 * recorded.rows.length, (chart) => this.drawRaster(chart));
    const time = document.getElementById("link-time");
    if (!time) return;
    time.max = recorded.slots;
    time.addEventListener("input", () => {
      this.slot = time.value === "0" ? null : Number(time.value) - 1;
      const step = recorded.end_s / recorded.slots;
      document.getElementById("link-when").textContent = this.slot === null ? "over the whole run"
        : `${seconds(this.slot * step)} to ${seconds((this.slot + 1) * step)}`;
      if (this.graph) this.drawGraph(this.graph.chart);
    });
  }

  drawGraph(chart) {
    const { nodes, lines } = this.recorded.drawing;
    const load = (line) => (this.slot === null ? line.mean : line.slots[this.slot]);
    chart.setOption({ ...base(), tooltip: { confine: true },
      series: [{ type: "graph", layout: "none", preserveAspect: true, left: 40, right: 90, top: 24, bottom: 24, label: { show: true, fontSize: 10 },
        edgeSymbol: ["none", "arrow"], edgeSymbolSize: 6,
        data: nodes.map((node) => ({ name: node.name, x: node.x, y: node.y, symbol: node.round ? "circle" : "roundRect",
          symbolSize: node.round ? 26 : [Math.max(26, 7 * node.label.length), 20], itemStyle: { color: node.colour },
          label: { formatter: node.round ? node.label.replace(/^gpu/, "") : node.label, color: "#ffffff" }, tooltip: { formatter: () => escaped(node.label) } })),
        links: lines.map((line) => ({ source: line.source, target: line.target,
          lineStyle: { color: heatOf(load(line)), width: load(line) > 0 ? 2.5 : 1, curveness: 0.08, opacity: 0.9 },
          tooltip: { formatter: () => `${escaped(line.name)}<br>${percent(load(line))} of its bandwidth` } })) }] });
  }

  drawRaster(chart) {
    const { rows, slots, end_s: end } = this.recorded;
    const cells = rows.flatMap((row, y) => row.loads.map((load, x) => [x, y, load]).filter(([, , load]) => load > 0));
    chart.setOption({ ...base(), aria: { enabled: false },
      tooltip: { confine: true, formatter: ({ value: [x, y, load] }) =>
        `${escaped(rows[y].name)}<br>${percent(load)} from ${seconds((x * end) / slots)}` },
      grid: { left: roomOf(rows.map((row) => row.name)), right: 24, top: 8, bottom: 62 },
      xAxis: { type: "category", data: Array.from({ length: slots }, (_, x) => seconds((x * end) / slots)), axisTick: { show: false } },
      yAxis: { type: "category", inverse: true, data: rows.map((row) => row.name), axisLabel: { fontSize: 10, width: widest(), overflow: "truncate" }, axisTick: { show: false } },
      visualMap: { min: 0, max: 1, text: ["100% of a link", "0%"], orient: "horizontal", left: "center", bottom: 4, itemWidth: 12, itemHeight: 120,
        textStyle: { color: ink(), fontSize: 11 }, inRange: { color: HEAT_SCALE } },
      series: [{ type: "heatmap", data: cells, progressive: 2000 }] });
  }
}

// ---- bars ------------------------------------------------------------------------------------------------------------

const OTHERS = ["#4477AA", "#CCBB44", "#228833", "#EE6677", "#66CCEE", "#AA3377"];

function drawBars({ columns, rows, unit }) {
  const shown = unit === "s" ? (value) => seconds(value) : (value) => Number(value.toPrecision(4)).toLocaleString("en");
  const labels = rows.map((row) => row.label);
  return (chart) => chart.setOption({ ...base(),
    tooltip: { trigger: "axis", axisPointer: { type: "shadow" }, valueFormatter: shown, confine: true },
    legend: { type: "scroll", top: 0, left: 0, show: columns.length > 1 }, grid: { left: roomOf(labels), right: 24, top: 32, bottom: 24 },
    xAxis: { type: "value", axisLabel: { formatter: shown, hideOverlap: true } },
    yAxis: { type: "category", inverse: true, data: labels, axisLabel: { fontSize: 11, width: widest(), overflow: "truncate" } },
    series: columns.map((name, index) => ({ type: "bar", stack: "one", name, barMaxWidth: 24,
      itemStyle: { color: data.colours[name] || OTHERS[index % OTHERS.length] }, data: rows.map((row) => row.values[index]) })) });
}

// ---- points of a search ----------------------------------------------------------------------------------------------

function drawPoints(chart) {
  const groups = data.points.groups;
  chart.setOption({ ...base(), legend: { type: "scroll", top: 0, left: 0 }, grid: { left: 76, right: 30, top: 36, bottom: 48 },
    tooltip: { confine: true, formatter: ({ data: [memory, time, label], seriesName }) =>
      `${escaped(label)}<br>${escaped(seriesName)}: ${seconds(time)}, ${Number(memory.toPrecision(3))} GiB` },
    xAxis: { type: "value", name: "GiB of the fullest GPU", nameLocation: "middle", nameGap: 28, scale: true },
    yAxis: { type: "value", scale: true, axisLabel: { formatter: (value) => seconds(value) } },
    series: groups.map(({ name, colour, points }) => ({ type: "scatter", name, symbolSize: 8, itemStyle: { color: colour }, data: points })) });
}

for (const bars of data.bars) addChart(bars.anchor, 60 + 26 * bars.rows.length, drawBars(bars));
if (data.timeline) window.timeline = new Timeline(data.timeline);
if (data.memory_curve) addChart("memory-curve", 320, drawMemory);
if (data.link_loads) new Links(data.link_loads);
if (data.points) addChart("points", 420, drawPoints);
