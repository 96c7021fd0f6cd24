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
