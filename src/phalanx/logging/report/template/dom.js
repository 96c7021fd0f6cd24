// Page data, DOM helpers and number formats. Text from run folders is only set as text, never as HTML.
const DATA = JSON.parse(document.getElementById("data").textContent);
const COMPARING = DATA.runs.length > 1;
const COLORS = 8;

const unbase64 = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false)
      element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
const color = (index) => `var(--c${index % COLORS})`;

function swatch(index, dashed) {
  const mark = el("span", { class: dashed ? "swatch dashed" : "swatch", "aria-hidden": "true" });
  mark.style.borderTopColor = color(index);
  return mark;
}

// Creates a row of buttons of which one is selected; `onSelect` is called with its value.
function segments(label, options, selected, onSelect) {
  const buttons = options.map(([value, text]) =>
    el(
      "button",
      {
        type: "button",
        "data-value": value,
        "aria-pressed": String(value === selected),
        click: () => select(value),
      },
      text,
    ),
  );
  function select(value) {
    for (const button of buttons)
      button.setAttribute("aria-pressed", String(button.dataset.value === String(value)));
    onSelect(value);
  }
  return el("div", { class: "segments", role: "group", "aria-label": label }, buttons);
}

// Removes trailing zeros and uses a typographic minus sign.
const trimmed = (text) =>
  (text.includes(".") && !text.includes("e") ? text.replace(/\.?0+$/, "") : text).replaceAll("-", "−");
const grouped = (value) => trimmed(Math.round(value).toLocaleString("en-US"));

function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e7) return compact(value);
  if (size >= 1e4) return grouped(value);
  if (size < 1e-3) return trimmed(value.toExponential(2).replace(/\.?0+e/, "e"));
  return trimmed(value.toPrecision(4));
}

function compact(value) {
  const size = Math.abs(value);
  for (const [factor, prefix] of [
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "k"],
  ]) {
    if (size >= factor) return `${trimmed((value / factor).toPrecision(3))} ${prefix}`;
  }
  return size > 0 && size < 1e-3 ? trimmed(value.toExponential(0)) : trimmed(value.toPrecision(3));
}

// Fractions below 1 are never rounded up to 100%.
function percent(fraction) {
  if (fraction === null || fraction === undefined) return "–";
  return fraction < 1
    ? `${Math.min(100 * fraction, 99.9).toFixed(1)}%`
    : `${trimmed((100 * fraction).toFixed(1))}%`;
}

function duration(seconds) {
  const twoDigits = (value) => String(Math.floor(value)).padStart(2, "0");
  if (seconds < 60) return `${trimmed(seconds.toFixed(1))} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${twoDigits(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${twoDigits((seconds % 3600) / 60)} min`;
}

const formatValue = (unit, value) => (unit === "fraction" ? percent(value) : number(value));
