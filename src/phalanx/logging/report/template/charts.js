// What a chart is drawn from: the shared view, scales, smoothing, and the paths of lines and bands.
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

// An exponential mean that starts unbiased; gaps stay gaps.
function smoothed(values, weight) {
  if (!values || weight === 0) return values;
  let sum = 0,
    mass = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return sum / mass;
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
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high + step * 1e-9; at++)
    found.push(at * step + 0);
  return found;
}

// Where the values are nearest to x; the values grow.
function nearest(values, x) {
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

// Curves: hand-drawn SVG with a crosshair that all charts share, zoom by dragging, and a tooltip.
class Chart {
  constructor(spec, height) {
    this.spec = spec;
    this.height = height;
    this.steady = spec.group === "Evaluation";
    this.clip = `clip-${charts.length}`;
    this.hover = null;
    this.svg = svg("svg", {
      role: "img",
      tabindex: 0,
      height,
      pointermove: (event) => this.moved(event),
      pointerleave: () => hoverAt(null),
      pointerdown: (event) => this.pressed(event),
      pointerup: (event) => this.released(event),
      dblclick: () => setZoom(null),
      keydown: (event) => this.typed(event),
      blur: () => hoverAt(null),
    });
    const several = spec.series.length > 1;
    this.now = el("span", { class: "now" }, several ? "" : this.lastText());
    const legend = several
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
    return values.length ? inUnit(this.spec.unit, values[values.length - 1]) : "no finite values";
  }

  // The curves on the chosen axis, smoothed; a run that does not know the axis has none.
  curves() {
    const weight = this.steady ? 0 : view.smoothing;
    return this.spec.series.flatMap((series) => {
      const axis = DATA.axes[series.axes][view.axis];
      if (!axis) return [];
      const xs = series.at ? series.at.map((place) => axis[place]) : axis;
      const value = smoothed(series.value, weight);
      const std = smoothed(series.std, weight);
      // The ends of several runs would lie over one another; comparing, the deviations say enough.
      const ends = (!COMPARING || series.seeds) && series.low && series.high;
      const edge = (sign) =>
        std && value.map((mean, i) => (mean === null || std[i] === null ? null : mean + sign * std[i]));
      return [
        {
          series,
          xs,
          value,
          raw: series.value,
          low: ends && smoothed(series.low, weight),
          high: ends && smoothed(series.high, weight),
          below: edge(-1),
          above: edge(1),
          smooth: weight > 0,
        },
      ];
    });
  }

  range(curves, [left, right]) {
    if (this.spec.whole) return [0, 1];
    let low = Infinity,
      high = -Infinity;
    for (const curve of curves) {
      const shown = [
        curve.raw,
        curve.low,
        curve.high,
        ...(curve.low ? [] : [curve.below, curve.above]),
      ].filter((values) => values);
      curve.xs.forEach((x, i) => {
        if (x < left || x > right) return;
        for (const values of shown) {
          if (values[i] === null) continue;
          low = Math.min(low, values[i]);
          high = Math.max(high, values[i]);
        }
      });
    }
    if (low > high) return [0, 1];
    const pad = (high - low) * 0.06 || Math.abs(high) * 0.1 || 0.5;
    // A chart that nearly reaches zero may as well show it.
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
    this.unx = (place) => left + ((place - inner.left) / (inner.right - inner.left)) * (right - left);
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
          this.spec.unit === "share" ? `${trimmed((100 * at).toPrecision(3))}%` : compact(at),
        ),
      );
    }
    for (const at of ticks(left, right, Math.max(2, width / 110), view.axis === "seconds" ? 60 : 10)) {
      const place = x(at);
      marks.push(
        svg(
          "text",
          {
            x: place,
            y: height - 5,
            "text-anchor": place > inner.right - 14 ? "end" : place < inner.left + 14 ? "start" : "middle",
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
    this.svg.setAttribute("aria-label", this.spoken(curves));
    this.svg.replaceChildren(clip, ...marks, lines, this.over);
    if (!curves.length)
      this.svg.append(
        svg(
          "text",
          { x: width / 2, y: height / 2, "text-anchor": "middle" },
          `not known by ${AXES[view.axis].toLowerCase()}`,
        ),
      );
    this.drawHover();
  }

  bands(curve) {
    const { x, y } = this,
      { xs } = curve,
      ink = color(curve.series.color),
      found = [];
    if (curve.low)
      found.push(svg("path", { class: "range", fill: ink, d: bandPath(xs, curve.low, curve.high, x, y) }));
    if (curve.below)
      found.push(
        svg("path", { class: "deviation", fill: ink, d: bandPath(xs, curve.below, curve.above, x, y) }),
      );
    return found;
  }

  lines(curve) {
    const { x, y } = this,
      { series, xs } = curve,
      ink = color(series.color),
      found = [];
    if (curve.smooth)
      found.push(svg("path", { class: "raw", stroke: ink, d: pointsPath(xs, curve.raw, x, y) }));
    found.push(
      svg("path", {
        class: "curve",
        stroke: ink,
        "stroke-dasharray": series.dash ? "5 5" : null,
        d: pointsPath(xs, curve.value, x, y),
      }),
    );
    // A point without neighbours has no line, and few points are better seen one by one.
    const few = this.steady && xs.length <= 40;
    curve.value.forEach((value, i) => {
      const alone =
        (i === 0 || curve.value[i - 1] === null) && (i === xs.length - 1 || curve.value[i + 1] === null);
      if (value !== null && (few || alone))
        found.push(
          svg("circle", { class: "dot", cx: x(xs[i]), cy: y(value), r: few ? 3.2 : 2.6, fill: ink }),
        );
    });
    return found;
  }

  spoken(curves) {
    const said = curves.map((curve) => {
      const values = curve.raw.filter((value) => value !== null);
      return `${this.label(curve.series)}: from ${inUnit(this.spec.unit, values[0])} to ${inUnit(this.spec.unit, values[values.length - 1])}, ${curve.xs.length} points`;
    });
    return `${this.spec.title} by ${AXES[view.axis].toLowerCase()}. ${said.join("; ")}. Left and right arrow keys read single points.`;
  }

  // The point of each curve that is nearest to the crosshair.
  found() {
    return this.drawn
      .filter((curve) => curve.xs.length)
      .map((curve) => ({ curve, i: nearest(curve.xs, this.hover) }));
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
    const place = this.x(this.hover);
    if (place < this.inner.left - 1 || place > this.inner.right + 1) return;
    this.over.append(
      svg("line", {
        class: "cross",
        x1: Math.round(place) + 0.5,
        x2: Math.round(place) + 0.5,
        y1: this.inner.top,
        y2: this.inner.bottom,
      }),
    );
    for (const { curve, i } of this.found()) {
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

  // The nearest point to a place on the screen, of the curve that has most points.
  snap(place) {
    const curve = this.drawn.reduce(
      (best, other) => (best && best.xs.length >= other.xs.length ? best : other),
      null,
    );
    return curve && curve.xs.length ? curve.xs[nearest(curve.xs, this.unx(place))] : null;
  }

  moved(event) {
    const place = Math.min(Math.max(event.offsetX, this.inner.left), this.inner.right);
    if (this.brush) {
      this.brush[1] = place;
    }
    hoverAt(this.snap(place), this, event.clientX, event.clientY);
  }

  pressed(event) {
    if (event.button !== 0 || event.pointerType === "touch") return;
    this.brush = [event.offsetX, event.offsetX];
    this.svg.setPointerCapture(event.pointerId);
  }

  released() {
    const [a, b] = (this.brush ?? [0, 0])
      .map((place) => this.unx(Math.min(Math.max(place, this.inner.left), this.inner.right)))
      .sort((p, q) => p - q);
    const wide = this.brush && Math.abs(this.brush[0] - this.brush[1]) > 6;
    this.brush = null;
    if (wide) setZoom([a, b]);
  }

  typed(event) {
    const curve = this.drawn[0];
    const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    if (event.key === "Escape") hoverAt(null);
    if (!(event.key in steps) || !curve) return;
    event.preventDefault();
    const here =
      this.hover === null ? (steps[event.key] < 0 ? curve.xs.length : -1) : nearest(curve.xs, this.hover);
    const i = Math.min(Math.max(here + steps[event.key], 0), curve.xs.length - 1);
    const box = this.svg.getBoundingClientRect();
    hoverAt(curve.xs[i], this, box.left + this.x(curve.xs[i]), box.top + this.inner.top + 20);
  }

  tooltip() {
    const { unit } = this.spec;
    const rows = this.found().map(({ curve, i }) => {
      const more = [];
      if (curve.smooth && curve.raw[i] !== null) more.push(`smoothed ${inUnit(unit, curve.value[i])}`);
      if (curve.series.std) more.push(`± ${inUnit(unit, curve.series.std[i])}`);
      if (curve.series.low && curve.series.high)
        more.push(`${inUnit(unit, curve.series.low[i])} to ${inUnit(unit, curve.series.high[i])}`);
      const elsewhere = curve.xs[i] !== this.hover ? ` at ${xText(curve.xs[i])}` : "";
      return [
        el(
          "div",
          { class: "row" },
          swatch(curve.series.color, curve.series.dash),
          el("span", {}, this.label(curve.series) + elsewhere),
          el("b", {}, inUnit(unit, curve.raw[i])),
        ),
        more.length ? el("div", { class: "more" }, more.join(" · ")) : null,
      ];
    });
    const name = { update: "Update", steps: "Step", seconds: "After" }[view.axis];
    return [el("div", { class: "at" }, `${name} ${xText(this.hover)}`), ...rows.flat()].filter((row) => row);
  }
}

// Every chart shows the crosshair; the one under the pointer says the values too.
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

// Success by family of tasks: bars of the last evaluation, with the first one faintly behind.
function bar(label, place, row) {
  const said = [`${label}: ${percent(row.value)}`];
  const track = el("div", { class: "track" });
  const piece = (kind, share) => {
    const mark = el("i", { class: kind });
    if (kind === "pass") mark.style.left = `calc(${100 * share}% - 1px)`;
    else {
      mark.style.width = `${100 * share}%`;
      mark.style.background = color(place);
    }
    track.append(mark);
  };
  if (row.before !== null) {
    piece("before", row.before);
    said.push(`first ${percent(row.before)}`);
  }
  if (row.value !== null) piece("after", row.value);
  const ks = Object.keys(row.pass).sort((a, b) => a - b);
  const most = ks[ks.length - 1];
  if (ks.length && most !== "1") {
    piece("pass", row.pass[most]);
    said.push(`pass@${most} ${percent(row.pass[most])}`);
  }
  if (row.episodes !== null) said.push(`${grouped(row.episodes)} episodes`);
  if (row.similarity !== null) said.push(`similarity ${percent(row.similarity)}`);
  return el(
    "div",
    { class: "bar", role: "img", "aria-label": `${row.name}, ${said.join(", ")}`, title: said.join("\n") },
    track,
    el("span", {}, percent(row.value)),
  );
}

// Alone, a family has a bar for each mode; comparing, one for each run in the mode that is chosen.
function familyBars() {
  const all = DATA.runs.flatMap((run, place) =>
    run.families.map((found) => ({ ...found, run: place, name: `${found.split}, ${found.mode}` })),
  );
  if (!all.length) return null;
  const modes = [...new Set(all.map((found) => found.name))];
  const short = new Set(all.map((found) => found.split)).size < 2;
  const shortened = (name) => (short ? name.slice(name.lastIndexOf(", ") + 2) : name);
  const body = el("div");
  function draw(mode) {
    const shown = COMPARING
      ? all
          .filter((found) => found.name === mode)
          .map((found) => ({ ...found, color: found.run, label: DATA.runs[found.run].label }))
      : all.map((found) => ({ ...found, color: modes.indexOf(found.name), label: shortened(found.name) }));
    const names = [...new Set(shown.flatMap((found) => found.rows.map((row) => row.name)))];
    const families = names.map((name) =>
      el(
        "div",
        { class: "family", "data-family": name },
        el("div", { class: "name" }, name),
        el(
          "div",
          {},
          shown.flatMap((found) => {
            const row = found.rows.find((other) => other.name === name);
            return row ? [bar(found.label, found.color, row)] : [];
          }),
        ),
      ),
    );
    const legend = el(
      "ul",
      { class: "legend" },
      shown.map((found) =>
        el("li", {}, swatch(found.color), `${found.label}, update ${grouped(found.update)}`),
      ),
    );
    const passes = shown
      .filter((found) => Object.keys(found.rows[0].pass).length)
      .map((found) =>
        el(
          "p",
          { class: "passes" },
          `${found.label}: `,
          Object.entries(found.rows[0].pass)
            .sort(([a], [b]) => a - b)
            .flatMap(([k, share], place) => [place ? " · " : "", `pass@${k} `, el("b", {}, percent(share))]),
        ),
      );
    const before = shown.some((found) => found.rows.some((row) => row.before !== null));
    const ticked = passes.length > 0;
    const key = [before ? "Faint: the first evaluation." : "", ticked ? "Tick: pass@k of the largest k." : ""]
      .join(" ")
      .trim();
    body.replaceChildren(...families, legend, ...passes, ...(key ? [el("p", { class: "passes" }, key)] : []));
  }
  const chooser =
    COMPARING && modes.length > 1
      ? segments(
          "Mode of evaluation",
          modes.map((name) => [name, shortened(name)]),
          modes[0],
          draw,
        )
      : null;
  draw(modes[0]);
  return el(
    "div",
    { class: "bars card", id: "families" },
    el("header", {}, el("h3", {}, "Success by task family"), chooser),
    body,
  );
}
