// Elements, numbers as text, and the data of the page. Text from the runs is only ever set as text.
const DATA = JSON.parse(document.getElementById("data").textContent);
const COMPARING = DATA.runs.length > 1;
const COLORS = 8;
// Functions that add the sections of an environment's panels; the scripts of the panels append to it.
const panelSections = [];

const unbase64 = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

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
const color = (place) => `var(--c${place % COLORS})`;

function swatch(place, dashed) {
  const mark = el("span", { class: dashed ? "swatch dashed" : "swatch", "aria-hidden": "true" });
  mark.style.borderTopColor = color(place);
  return mark;
}

// A row of buttons of which one is pressed; `choose` is called with its value.
function segments(label, options, chosen, choose) {
  const buttons = options.map(([value, text]) =>
    el(
      "button",
      {
        type: "button",
        "data-value": value,
        "aria-pressed": String(value === chosen),
        click: () => pick(value),
      },
      text,
    ),
  );
  function pick(value) {
    for (const button of buttons)
      button.setAttribute("aria-pressed", String(button.dataset.value === String(value)));
    choose(value);
  }
  return el("div", { class: "segments", role: "group", "aria-label": label }, buttons);
}

// Without idle zeros, and with a true minus sign.
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
  for (const [unit, letter] of [
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "k"],
  ]) {
    if (size >= unit) return `${trimmed((value / unit).toPrecision(3))} ${letter}`;
  }
  return size > 0 && size < 1e-3 ? trimmed(value.toExponential(0)) : trimmed(value.toPrecision(3));
}

// Only what is whole reads 100%.
function percent(share) {
  if (share === null || share === undefined) return "–";
  return share < 1 ? `${Math.min(100 * share, 99.9).toFixed(1)}%` : `${trimmed((100 * share).toFixed(1))}%`;
}

function duration(seconds) {
  const two = (value) => String(Math.floor(value)).padStart(2, "0");
  if (seconds < 60) return `${trimmed(seconds.toFixed(1))} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${two(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${two((seconds % 3600) / 60)} min`;
}

const inUnit = (unit, value) => (unit === "share" ? percent(value) : number(value));
