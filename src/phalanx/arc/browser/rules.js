// The operations and rules of an episode, as in `phalanx.arc`.
// A grid is an array of the cells of the canvas, row by row, with -1 outside its area.
const FIRST_FLOOD_FILL = 10;
const [MOVE_UP, MOVE_DOWN, MOVE_LEFT, MOVE_RIGHT, CLOCKWISE, COUNTERCLOCKWISE, FLIP_HORIZONTAL, FLIP_VERTICAL] =
  [20, 21, 22, 23, 24, 25, 26, 27];
const [COPY, PASTE, CUT, CLEAR, COPY_INPUT, RESIZE, SUBMIT, RESET_PAIR] = [28, 29, 30, 31, 32, 33, 34, 39];
const WITHOUT_CELLS = [COPY_INPUT, SUBMIT, RESET_PAIR];

// Create a grid on the agent's canvas from rows of digits.
function gridOf(agent, rows) {
  const [, columns] = agent.canvas;
  const cells = new Int8Array(agent.canvas[0] * columns).fill(-1);
  rows.forEach((row, r) => [...row].forEach((digit, c) => (cells[r * columns + c] = Number(digit))));
  return { height: rows.length, width: rows[0].length, cells };
}

const rowsOf = (agent, { height, width, cells }) =>
  Array.from({ length: height }, (_, r) =>
    cells.subarray(r * agent.canvas[1], r * agent.canvas[1] + width).join(""),
  );

const sameGrid = (one, other) =>
  one.height === other.height &&
  one.width === other.width &&
  one.cells.every((color, cell) => color === other.cells[cell]);

function startOf(agent, input) {
  const none = new Int8Array(input.cells.length);
  return { ...input, input, clipboard: none.map(() => -1), selected: none, steps: 0, submitted: false };
}

const isOver = (agent, state) => state.submitted || state.steps >= agent.max_steps;

// Change the area of a grid; new cells are 0.
function resized(agent, cells, height, width) {
  const [, columns] = agent.canvas;
  return cells.map((color, cell) => {
    const there = Math.floor(cell / columns) < height && cell % columns < width;
    return there ? Math.max(color, 0) : -1;
  });
}

// List the cells of the single-color region around a cell.
function regionOf(agent, cells, start) {
  const columns = agent.canvas[1];
  const found = new Set([start]);
  for (const cell of found) {
    const beside = [cell - columns, cell + columns];
    if (cell % columns > 0) beside.push(cell - 1);
    if (cell % columns < columns - 1) beside.push(cell + 1);
    for (const next of beside) if (cells[next] === cells[start]) found.add(next);
  }
  return [...found];
}

function boxOf(agent, cells) {
  const rows = cells.map((cell) => Math.floor(cell / agent.canvas[1]));
  const columns = cells.map((cell) => cell % agent.canvas[1]);
  return [Math.min(...rows), Math.min(...columns), Math.max(...rows), Math.max(...columns)];
}

// Compute the new row and column of a cell that belongs to an object with the given box.
function displaced(operation, r, c, [top, left, bottom, right]) {
  switch (operation) {
    case MOVE_UP: return [r - 1, c];
    case MOVE_DOWN: return [r + 1, c];
    case MOVE_LEFT: return [r, c - 1];
    case MOVE_RIGHT: return [r, c + 1];
    case CLOCKWISE: return [top + c - left, left + bottom - r];
    case COUNTERCLOCKWISE: return [top + right - c, left + r - top];
    case FLIP_HORIZONTAL: return [r, left + right - c];
    case FLIP_VERTICAL: return [top + bottom - r, c];
    case PASTE: return [top + r, left + c];
    default: return [r - top, c - left];
  }
}

// Compute the state after an action, whose corners [row, column, row, column] are on the canvas.
function stepOf(agent, state, { operation, corners }) {
  const columns = agent.canvas[1];
  const [top, left, bottom, right] = [
    Math.min(corners[0], corners[2]), Math.min(corners[1], corners[3]),
    Math.max(corners[0], corners[2]), Math.max(corners[1], corners[3]),
  ];
  const after = { ...state, steps: state.steps + 1 };
  const named = (_, cell) => {
    const [r, c] = [Math.floor(cell / columns), cell % columns];
    return r >= top && r <= bottom && c >= left && c <= right ? 1 : 0;
  };
  const places = [...state.cells.keys()];
  const chosen = places.filter((cell) => state.cells[cell] >= 0 && named(0, cell));
  const cells = state.cells.slice();
  let written = null;
  // Cells to which moves, rotations, flips, Copy, Cut and Clear apply: the entire grid if none is selected.
  const object = chosen.length ? chosen : places.filter((cell) => state.cells[cell] >= 0);
  const put = (sources, colors, canvas, box, inside) => {
    const put_at = [];
    for (const source of sources) {
      const [r, c] = displaced(operation, Math.floor(source / columns), source % columns, box);
      if (r < 0 || c < 0 || c >= columns || r >= agent.canvas[0]) continue;
      if (inside && state.cells[r * columns + c] < 0) continue;
      canvas[r * columns + c] = colors[source];
      put_at.push(r * columns + c);
    }
    return put_at;
  };
  if (operation < FIRST_FLOOD_FILL) for (const cell of chosen) cells[cell] = operation;
  else if (operation < MOVE_UP) {
    if (chosen.length === 1)
      for (const cell of regionOf(agent, state.cells, chosen[0])) cells[cell] = operation - FIRST_FLOOD_FILL;
  } else if (operation <= FLIP_VERTICAL) {
    for (const cell of object) cells[cell] = 0;
    written = put(object, state.cells, cells, boxOf(agent, object), true);
  } else if (operation === COPY || operation === CUT) {
    after.clipboard = state.clipboard.map(() => -1);
    put(object, state.cells, after.clipboard, boxOf(agent, object), false);
    if (operation === CUT) for (const cell of object) cells[cell] = 0;
  } else if (operation === PASTE) {
    const held = places.filter((cell) => state.clipboard[cell] >= 0);
    if (chosen.length) put(held, state.clipboard, cells, boxOf(agent, chosen), true);
  } else if (operation === CLEAR) for (const cell of object) cells[cell] = 0;
  else if (operation === COPY_INPUT || operation === RESET_PAIR) Object.assign(after, state.input);
  else if (operation === RESIZE)
    Object.assign(after, {
      height: bottom + 1,
      width: right + 1,
      cells: resized(agent, state.cells, bottom + 1, right + 1),
    });
  else if (operation === SUBMIT) after.submitted = true;
  if (after.cells === state.cells) after.cells = cells;
  after.selected = state.selected.map((_, cell) => (named(0, cell) && after.cells[cell] >= 0 ? 1 : 0));
  if (written) {
    after.selected.fill(0);
    for (const cell of written) after.selected[cell] = 1;
  }
  return after;
}
