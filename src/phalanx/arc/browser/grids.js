// Editable SVG grids, and actions as text.
const CELL = 20;

// Draw a small grid for a list.
function thumbnail(agent, rows) {
  const canvas = el("canvas", { width: rows[0].length, height: rows.length, "aria-hidden": "true" });
  const context = canvas.getContext("2d");
  rows.forEach((row, r) =>
    [...row].forEach((digit, c) => {
      context.fillStyle = agent.palette[Number(digit)];
      context.fillRect(c, r, 1, 1);
    }),
  );
  return canvas;
}

// Create a grid with a caption. `paint` is called with row, column and, if a digit was typed, a color.
function makeBoard(agent, label, paint = null) {
  const picture = svg("svg", { class: "cells", role: "img" });
  const caption = el("figcaption", {}, label);
  const element = el("figure", { class: "board" }, caption, picture);
  const cursor = { row: 0, column: 0 };
  let shown = null;
  let editable = false;

  function draw(grid, { corners = null, changed = null } = {}) {
    shown = grid;
    const columns = agent.canvas[1];
    const rectangle = (row, column, height, width, attributes) =>
      svg("rect", { x: column * CELL, y: row * CELL, width: width * CELL, height: height * CELL, ...attributes });
    const cells = [];
    for (let row = 0; row < grid.height; row++)
      for (let column = 0; column < grid.width; column++) {
        const cell = row * columns + column;
        const fresh = changed !== null && changed.cells[cell] !== grid.cells[cell];
        cells.push(
          rectangle(row, column, 1, 1, { fill: agent.palette[grid.cells[cell]], class: fresh ? "fresh" : null }),
        );
      }
    if (corners) {
      const [top, bottom] = [Math.min(corners[0], corners[2]), Math.max(corners[0], corners[2])];
      const [left, right] = [Math.min(corners[1], corners[3]), Math.max(corners[1], corners[3])];
      const box = [top, left, bottom - top + 1, right - left + 1];
      cells.push(rectangle(...box, { class: "target under" }), rectangle(...box, { class: "target" }));
    }
    if (editable && picture === document.activeElement)
      cells.push(rectangle(cursor.row, cursor.column, 1, 1, { class: "cursor" }));
    const [width, height] = [grid.width * CELL, grid.height * CELL];
    picture.setAttribute("viewBox", `-1 -1 ${width + 2} ${height + 2}`);
    picture.style.maxWidth = `${Math.min(56, 340 / Math.max(grid.width, grid.height)) * grid.width}px`;
    picture.setAttribute("aria-label", `${caption.textContent}: ${rowsOf(agent, grid).join(", ")}`);
    picture.replaceChildren(...cells);
  }

  function paintAt(event) {
    if (!editable || !event.buttons) return;
    const box = picture.getBoundingClientRect();
    const row = Math.floor(((event.clientY - box.top) / box.height) * shown.height);
    const column = Math.floor(((event.clientX - box.left) / box.width) * shown.width);
    if (row < 0 || column < 0 || row >= shown.height || column >= shown.width) return;
    Object.assign(cursor, { row, column });
    paint(row, column);
  }

  function typed(event) {
    if (!editable) return;
    const [down, right] =
      { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ?? [0, 0];
    if (!down && !right && !/^[0-9 ]$/.test(event.key)) return;
    event.preventDefault();
    cursor.row = Math.min(Math.max(cursor.row + down, 0), shown.height - 1);
    cursor.column = Math.min(Math.max(cursor.column + right, 0), shown.width - 1);
    if (event.key === " ") paint(cursor.row, cursor.column);
    else if (/[0-9]/.test(event.key)) paint(cursor.row, cursor.column, Number(event.key));
    else draw(shown);
  }

  if (paint) {
    const again = () => draw(shown);
    const listeners = { pointerdown: paintAt, pointermove: paintAt, keydown: typed, focus: again, blur: again };
    for (const [name, act] of Object.entries(listeners)) picture.addEventListener(name, act);
  }

  return {
    element,
    draw,
    say: (text) => caption.replaceChildren(text),
    edit(on) {
      editable = on;
      picture.classList.toggle("editable", on);
      if (on) picture.setAttribute("tabindex", 0);
      else picture.removeAttribute("tabindex");
    },
  };
}

// Describe an action, with a patch of its color.
function inWords(agent, { operation, corners }) {
  const { name } = agent.operations.find(({ id }) => id === operation);
  const span = (one, other) => (one === other ? `${one + 1}` : `${Math.min(one, other) + 1}–${Math.max(one, other) + 1}`);
  const where = WITHOUT_CELLS.includes(operation)
    ? null
    : el("span", { class: "muted" }, ` row ${span(corners[0], corners[2])}, column ${span(corners[1], corners[3])}`);
  if (operation >= MOVE_UP) return [name, where];
  const patch = el("i", { class: "patch", "aria-hidden": "true" });
  patch.style.background = agent.palette[operation % FIRST_FLOOD_FILL];
  return [patch, name, where];
}
