// Charts: axes, smoothing, curves with bands, tooltips, zoom, and bars of success rates.
const AXES = { update: "Updates", steps: "Environment steps", seconds: "Time" };
const MARGIN = { top: 8, right: 10, bottom: 22, left: 46 };
const view = { axis: "update", smoothing: 0.5, zoom: null };
const charts = [];

const xText = (value) => (view.axis === "seconds" ? duration(value) : grouped(value));
const xTick = (value) =>
  view.axis !== "seconds"
    ? compact(value)
    : value < 120
      ? `${trimmed(value.toFixed(1))} s`
      : value < 7200
        ? `${trimmed((value / 60).toFixed(1))} min`
        : `${trimmed((value / 3600).toFixed(1))} h`;

// Exponential moving average with bias correction. Gaps (null) are preserved.
function smooth(values, weight) {
  if (!values || weight === 0) return values;
  let sum = 0,
    totalWeight = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    totalWeight = weight * totalWeight + (1 - weight);
    return sum / totalWeight;
  });
}

function ticks(low, high, count, base = 10) {
  const rough = (high - low) / count || 1;
  let step;
  if (base === 60 && rough > 1)
    step =
      [2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400].find(
        (size) => size >= rough,
      ) ?? 86400 * Math.ceil(rough / 86400);
  else {
    const power = 10 ** Math.floor(Math.log10(rough));
    step = power * [1, 2, 2.5, 5, 10].find((size) => size * power >= rough * 0.999);
  }
  const positions = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at++)
    positions.push(at * step + 0);
  return positions;
}

// Index of the value closest to x in an ascending list.
function nearestIndex(values, x) {
  let low = 0,
    high = values.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (values[middle] < x) low = middle;
    else high = middle;
  }
  return high > 0 && x - values[low] > values[high] - x ? high : low;
}

function extent(axis) {
  let low = Infinity,
    high = -Infinity;
  for (const axes of DATA.axes) {
    const values = axes[axis];
    if (values && values.length) {
      low = Math.min(low, values[0]);
      high = Math.max(high, values[values.length - 1]);
    }
  }
  return low < high ? [low, high] : low === high ? [low - 0.5, low + 0.5] : [0, 1];
}

function pointsPath(xs, ys, x, y) {
  let path = "",
    pen = "M";
  for (let i = 0; i < xs.length; i++) {
    if (ys[i] === null) pen = "M";
    else {
      path += `${pen}${x(xs[i]).toFixed(1)} ${y(ys[i]).toFixed(1)}`;
      pen = "L";
    }
  }
  return path;
}

function bandPath(xs, lows, highs, x, y) {
  let path = "",
    open = [];
  const close = () => {
    if (open.length > 1)
      path +=
        "M" +
        open.map((i) => `${x(xs[i]).toFixed(1)} ${y(highs[i]).toFixed(1)}`).join("L") +
        "L" +
        open
          .reverse()
          .map((i) => `${x(xs[i]).toFixed(1)} ${y(lows[i]).toFixed(1)}`)
          .join("L") +
        "Z";
    open = [];
  };
  for (let i = 0; i < xs.length; i++) lows[i] === null || highs[i] === null ? close() : open.push(i);
  close();
  return path;
}

// A chart of curves in SVG, with a tooltip, zoom by dragging, and a crosshair that all charts share.
class Chart {
  constructor(spec, height) {
    this.spec = spec;
    this.height = height;
    this.isEvaluation = spec.group === "Evaluation";
    this.clip = `clip-${charts.length}`;
    this.hover = null;
    this.svg = svg("svg", {
      role: "img",
      tabindex: 0,
      height,
      pointermove: (event) => this.onPointerMove(event),
      pointerleave: () => hoverAt(null),
      pointerdown: (event) => this.onPointerDown(event),
      pointerup: () => this.onPointerUp(),
      dblclick: () => setZoom(null),
      keydown: (event) => this.onKeyDown(event),
      blur: () => hoverAt(null),
    });
    const hasLegend = spec.series.length > 1;
    this.now = el("span", { class: "now" }, hasLegend ? "" : this.lastText());
    const legend = hasLegend
      ? el(
          "ul",
          { class: "legend" },
          spec.series.map((series) => el("li", {}, swatch(series.color, series.dash), this.label(series))),
        )
      : null;
    this.element = el(
      "figure",
      { class: "chart card", "data-chart": spec.key },
      el("figcaption", {}, el("h3", {}, spec.title), this.now),
      this.svg,
      legend,
    );
    charts.push(this);
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }

  label(series) {
    const parts = [COMPARING ? DATA.runs[series.run].label : null, series.label];
    return parts.filter((part) => part).join(", ") || this.spec.title;
  }

  lastText() {
    const values = this.spec.series[0].value.filter((value) => value !== null);
    return values.length ? formatValue(this.spec.unit, values[values.length - 1]) : "no finite values";
  }

  // Smoothed curves on the selected axis; none for runs without that axis.
  curves() {
    const weight = this.isEvaluation ? 0 : view.smoothing;
    return this.spec.series.flatMap((series) => {
      const axis = DATA.axes[series.axes][view.axis];
      if (!axis) return [];
      const xs = series.at ? series.at.map((index) => axis[index]) : axis;
      const value = smooth(series.value, weight);
      const std = smooth(series.std, weight);
      // When runs are compared, their minima and maxima would overlap; only standard deviations are drawn.
      const hasRange = (!COMPARING || series.seeds) && series.low && series.high;
      const deviation = (sign) =>
        std && value.map((mean, i) => (mean === null || std[i] === null ? null : mean + sign * std[i]));
      return [
        {
          series,
          xs,
          value,
          raw: series.value,
          low: hasRange && smooth(series.low, weight),
          high: hasRange && smooth(series.high, weight),
          below: deviation(-1),
          above: deviation(1),
          isSmoothed: weight > 0,
        },
      ];
    });
  }

  range(curves, [left, right]) {
    if (this.spec.full_range) return [0, 1];
    let low = Infinity,
      high = -Infinity;
    for (const curve of curves) {
      const parts = [
        curve.raw,
        curve.low,
        curve.high,
        ...(curve.low ? [] : [curve.below, curve.above]),
      ].filter((values) => values);
      curve.xs.forEach((x, i) => {
        if (x < left || x > right) return;
        for (const values of parts) {
          if (values[i] === null) continue;
          low = Math.min(low, values[i]);
          high = Math.max(high, values[i]);
        }
      });
    }
    if (low > high) return [0, 1];
    const pad = (high - low) * 0.06 || Math.abs(high) * 0.1 || 0.5;
    // If the values are close to zero, start the axis at zero.
    return [
      low >= 0 && low < (high - low) * 0.3 ? 0 : low - pad,
      high <= 0 && -high < (high - low) * 0.3 ? 0 : high + pad,
    ];
  }

  draw() {
    const width = this.svg.clientWidth,
      height = this.height;
    if (!width) return;
    const curves = (this.drawn = this.curves());
    const [left, right] = view.zoom ?? extent(view.axis);
    const [low, high] = this.range(curves, [left, right]);
    const inner = {
      left: MARGIN.left,
      right: width - MARGIN.right,
      top: MARGIN.top,
      bottom: height - MARGIN.bottom,
    };
    this.x = (value) => inner.left + ((value - left) / (right - left)) * (inner.right - inner.left);
    this.invertX = (pixel) => left + ((pixel - inner.left) / (inner.right - inner.left)) * (right - left);
    this.y = (value) => inner.bottom - ((value - low) / (high - low)) * (inner.bottom - inner.top);
    this.inner = inner;
    const { x, y } = this;
    const marks = [];
    for (const at of ticks(low, high, height > 220 ? 6 : 5)) {
      marks.push(
        svg("line", {
          class: "grid",
          x1: inner.left,
          x2: inner.right,
          y1: Math.round(y(at)) + 0.5,
          y2: Math.round(y(at)) + 0.5,
        }),
      );
      marks.push(
        svg(
          "text",
          { x: inner.left - 8, y: y(at) + 4, "text-anchor": "end" },
          this.spec.unit === "fraction" ? `${trimmed((100 * at).toPrecision(3))}%` : compact(at),
        ),
      );
    }
    for (const at of ticks(left, right, Math.max(2, width / 110), view.axis === "seconds" ? 60 : 10)) {
      const pixel = x(at);
      marks.push(
        svg(
          "text",
          {
            x: pixel,
            y: height - 5,
            "text-anchor": pixel > inner.right - 14 ? "end" : pixel < inner.left + 14 ? "start" : "middle",
          },
          xTick(at),
        ),
      );
    }
    const clip = svg(
      "clipPath",
      { id: this.clip },
      svg("rect", { x: inner.left - 4, y: 0, width: inner.right - inner.left + 8, height: inner.bottom + 3 }),
    );
    const lines = svg(
      "g",
      { "clip-path": `url(#${this.clip})` },
      curves.map((curve) => this.bands(curve)),
      curves.map((curve) => this.lines(curve)),
    );
    this.over = svg("g", { "pointer-events": "none" });
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("aria-label", this.description(curves));
    this.svg.replaceChildren(clip, ...marks, lines, this.over);
    if (!curves.length)
      this.svg.append(
        svg(
          "text",
          { x: width / 2, y: height / 2, "text-anchor": "middle" },
          `no data by ${AXES[view.axis].toLowerCase()}`,
        ),
      );
    this.drawHover();
  }

  bands(curve) {
    const { x, y } = this,
      { xs } = curve,
      fill = color(curve.series.color),
      bands = [];
    if (curve.low)
      bands.push(svg("path", { class: "range", fill, d: bandPath(xs, curve.low, curve.high, x, y) }));
    if (curve.below)
      bands.push(
        svg("path", { class: "deviation", fill, d: bandPath(xs, curve.below, curve.above, x, y) }),
      );
    return bands;
  }

  lines(curve) {
    const { x, y } = this,
      { series, xs } = curve,
      stroke = color(series.color),
      elements = [];
    if (curve.isSmoothed)
      elements.push(svg("path", { class: "raw", stroke, d: pointsPath(xs, curve.raw, x, y) }));
    elements.push(
      svg("path", {
        class: "curve",
        stroke,
        "stroke-dasharray": series.dash ? "5 5" : null,
        d: pointsPath(xs, curve.value, x, y),
      }),
    );
    // Mark points without neighbors, which have no line, and all points of short curves.
    const isShort = this.isEvaluation && xs.length <= 40;
    curve.value.forEach((value, i) => {
      const isIsolated =
        (i === 0 || curve.value[i - 1] === null) && (i === xs.length - 1 || curve.value[i + 1] === null);
      if (value !== null && (isShort || isIsolated))
        elements.push(
          svg("circle", { class: "dot", cx: x(xs[i]), cy: y(value), r: isShort ? 3.2 : 2.6, fill: stroke }),
        );
    });
    return elements;
  }

  description(curves) {
    const summaries = curves.map((curve) => {
      const values = curve.raw.filter((value) => value !== null);
      return `${this.label(curve.series)}: from ${formatValue(this.spec.unit, values[0])} to ${formatValue(this.spec.unit, values[values.length - 1])}, ${curve.xs.length} points`;
    });
    return `${this.spec.title} by ${AXES[view.axis].toLowerCase()}. ${summaries.join("; ")}. Use the left and right arrow keys to read single points.`;
  }

  // The point of each curve that is closest to the crosshair.
  hoveredPoints() {
    return this.drawn
      .filter((curve) => curve.xs.length)
      .map((curve) => ({ curve, i: nearestIndex(curve.xs, this.hover) }));
  }

  drawHover() {
    this.over.replaceChildren();
    if (this.brush) {
      const [a, b] = [this.brush[0], this.brush[1]].sort((p, q) => p - q);
      this.over.append(
        svg("rect", {
          class: "brush",
          x: a,
          y: this.inner.top,
          width: b - a,
          height: this.inner.bottom - this.inner.top,
        }),
      );
    }
    if (this.hover === null) return;
    const pixel = this.x(this.hover);
    if (pixel < this.inner.left - 1 || pixel > this.inner.right + 1) return;
    this.over.append(
      svg("line", {
        class: "cross",
        x1: Math.round(pixel) + 0.5,
        x2: Math.round(pixel) + 0.5,
        y1: this.inner.top,
        y2: this.inner.bottom,
      }),
    );
    for (const { curve, i } of this.hoveredPoints()) {
      if (curve.value[i] !== null)
        this.over.append(
          svg("circle", {
            class: "dot",
            cx: this.x(curve.xs[i]),
            cy: this.y(curve.value[i]),
            r: 4,
            fill: color(curve.series.color),
          }),
        );
    }
  }

  // The x value closest to a pixel, of the curve with the most points.
  snap(pixel) {
    const curve = this.drawn.reduce(
      (best, other) => (best && best.xs.length >= other.xs.length ? best : other),
      null,
    );
    return curve && curve.xs.length ? curve.xs[nearestIndex(curve.xs, this.invertX(pixel))] : null;
  }

  onPointerMove(event) {
    const pixel = Math.min(Math.max(event.offsetX, this.inner.left), this.inner.right);
    if (this.brush) {
      this.brush[1] = pixel;
    }
    hoverAt(this.snap(pixel), this, event.clientX, event.clientY);
  }

  onPointerDown(event) {
    if (event.button !== 0 || event.pointerType === "touch") return;
    this.brush = [event.offsetX, event.offsetX];
    this.svg.setPointerCapture(event.pointerId);
  }

  onPointerUp() {
    const [a, b] = (this.brush ?? [0, 0])
      .map((pixel) => this.invertX(Math.min(Math.max(pixel, this.inner.left), this.inner.right)))
      .sort((p, q) => p - q);
    const isDrag = this.brush && Math.abs(this.brush[0] - this.brush[1]) > 6;
    this.brush = null;
    if (isDrag) setZoom([a, b]);
  }

  onKeyDown(event) {
    const curve = this.drawn[0];
    const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    if (event.key === "Escape") hoverAt(null);
    if (!(event.key in steps) || !curve) return;
    event.preventDefault();
    const current =
      this.hover === null ? (steps[event.key] < 0 ? curve.xs.length : -1) : nearestIndex(curve.xs, this.hover);
    const i = Math.min(Math.max(current + steps[event.key], 0), curve.xs.length - 1);
    const box = this.svg.getBoundingClientRect();
    hoverAt(curve.xs[i], this, box.left + this.x(curve.xs[i]), box.top + this.inner.top + 20);
  }

  tooltip() {
    const { unit } = this.spec;
    const rows = this.hoveredPoints().map(({ curve, i }) => {
      const details = [];
      if (curve.isSmoothed && curve.raw[i] !== null) details.push(`smoothed ${formatValue(unit, curve.value[i])}`);
      if (curve.series.std) details.push(`± ${formatValue(unit, curve.series.std[i])}`);
      if (curve.series.low && curve.series.high)
        details.push(`${formatValue(unit, curve.series.low[i])} to ${formatValue(unit, curve.series.high[i])}`);
      const position = curve.xs[i] !== this.hover ? ` at ${xText(curve.xs[i])}` : "";
      return [
        el(
          "div",
          { class: "row" },
          swatch(curve.series.color, curve.series.dash),
          el("span", {}, this.label(curve.series) + position),
          el("b", {}, formatValue(unit, curve.raw[i])),
        ),
        details.length ? el("div", { class: "more" }, details.join(" · ")) : null,
      ];
    });
    const name = { update: "Update", steps: "Step", seconds: "After" }[view.axis];
    return [el("div", { class: "at" }, `${name} ${xText(this.hover)}`), ...rows.flat()].filter((row) => row);
  }
}

// Shows the crosshair in all charts and the values in the active one.
function hoverAt(x, active, clientX, clientY) {
  const tooltip = document.getElementById("tooltip");
  for (const chart of charts) {
    if (chart.hover === x && x === null) continue;
    chart.hover = x;
    if (chart.over) chart.drawHover();
  }
  tooltip.hidden = x === null;
  if (x === null) return;
  tooltip.replaceChildren(...active.tooltip());
  const { width, height } = tooltip.getBoundingClientRect();
  tooltip.style.left = `${clientX + 18 + width > innerWidth ? Math.max(4, clientX - 18 - width) : clientX + 18}px`;
  tooltip.style.top = `${Math.min(Math.max(4, clientY - height / 2), innerHeight - height - 4)}px`;
}

function redraw() {
  hoverAt(null);
  for (const chart of charts) chart.draw();
}

function setZoom(zoom) {
  view.zoom = zoom;
  document.getElementById("unzoom").hidden = zoom === null;
  redraw();
}

// A bar with the success rate in the last evaluation, and in the first one behind it.
function bar(label, colorIndex, row) {
  const description = [`${label}: ${percent(row.value)}`];
  const track = el("div", { class: "track" });
  const addMark = (kind, fraction) => {
    const mark = el("i", { class: kind });
    if (kind === "pass") mark.style.left = `calc(${100 * fraction}% - 1px)`;
    else {
      mark.style.width = `${100 * fraction}%`;
      mark.style.background = color(colorIndex);
    }
    track.append(mark);
  };
  if (row.before !== null) {
    addMark("before", row.before);
    description.push(`first ${percent(row.before)}`);
  }
  if (row.value !== null) addMark("after", row.value);
  const ks = Object.keys(row.pass_at_k).sort((a, b) => a - b);
  const largest = ks[ks.length - 1];
  if (ks.length && largest !== "1") {
    addMark("pass", row.pass_at_k[largest]);
    description.push(`pass@${largest} ${percent(row.pass_at_k[largest])}`);
  }
  if (row.num_episodes !== null) description.push(`${grouped(row.num_episodes)} episodes`);
  if (row.similarity !== null) description.push(`similarity ${percent(row.similarity)}`);
  return el(
    "div",
    { class: "bar", role: "img", "aria-label": `${row.name}, ${description.join(", ")}`, title: description.join("\n") },
    track,
    el("span", {}, percent(row.value)),
  );
}

// Bars by task group: one per mode, or, when runs are compared, one per run in the selected mode.
function groupBars() {
  const all = DATA.runs.flatMap((run, index) =>
    run.groups.map((evaluation) => ({
      ...evaluation,
      run: index,
      name: `${evaluation.split}, ${evaluation.mode}`,
    })),
  );
  if (!all.length) return null;
  const modes = [...new Set(all.map((evaluation) => evaluation.name))];
  const hasOneSplit = new Set(all.map((evaluation) => evaluation.split)).size < 2;
  const modeLabel = (name) => (hasOneSplit ? name.slice(name.lastIndexOf(", ") + 2) : name);
  const body = el("div");
  function draw(mode) {
    const shown = COMPARING
      ? all
          .filter((evaluation) => evaluation.name === mode)
          .map((evaluation) => ({
            ...evaluation,
            color: evaluation.run,
            label: DATA.runs[evaluation.run].label,
          }))
      : all.map((evaluation) => ({
          ...evaluation,
          color: modes.indexOf(evaluation.name),
          label: modeLabel(evaluation.name),
        }));
    const names = [...new Set(shown.flatMap((evaluation) => evaluation.rows.map((row) => row.name)))];
    const groups = names.map((name) =>
      el(
        "div",
        { class: "task-group", "data-group": name },
        el("div", { class: "name" }, name),
        el(
          "div",
          {},
          shown.flatMap((evaluation) => {
            const row = evaluation.rows.find((other) => other.name === name);
            return row ? [bar(evaluation.label, evaluation.color, row)] : [];
          }),
        ),
      ),
    );
    const legend = el(
      "ul",
      { class: "legend" },
      shown.map(({ color, label, update }) =>
        el("li", {}, swatch(color), `${label}, update ${grouped(update)}`),
      ),
    );
    const passes = shown
      .filter(({ rows }) => Object.keys(rows[0].pass_at_k).length)
      .map(({ label, rows }) =>
        el(
          "p",
          { class: "passes" },
          `${label}: `,
          Object.entries(rows[0].pass_at_k)
            .sort(([a], [b]) => a - b)
            .flatMap(([k, rate], index) => [index ? " · " : "", `pass@${k} `, el("b", {}, percent(rate))]),
        ),
      );
    const hasFirst = shown.some(({ rows }) => rows.some((row) => row.before !== null));
    const key = [
      hasFirst ? "Faint: first evaluation." : "",
      passes.length ? "Tick: pass@k of the largest k." : "",
    ]
      .join(" ")
      .trim();
    body.replaceChildren(...groups, legend, ...passes, ...(key ? [el("p", { class: "passes" }, key)] : []));
  }
  const chooser =
    COMPARING && modes.length > 1
      ? segments(
          "Evaluation mode",
          modes.map((name) => [name, modeLabel(name)]),
          modes[0],
          draw,
        )
      : null;
  draw(modes[0]);
  return el(
    "div",
    { class: "bars card", id: "task-groups" },
    el("header", {}, el("h3", {}, "Success rate by task group"), chooser),
    body,
  );
}
