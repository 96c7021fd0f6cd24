// Forward pass of `ColorEquivariantNetwork`: from a state to action probabilities.
const NUM_COLORS = 10;
const MARKS = 4;

// Split the weights into arrays, in the order of `phalanx.arc.browser.export`.
function networkOf(agent) {
  const { width, depth } = agent.network;
  const numbers = new Float32Array(unbase64(agent.network.weights).buffer);
  const ids = agent.operations.map(({ id }) => id);
  const fills = ids.filter((id) => id < FIRST_FLOOD_FILL).length;
  const floods = ids.filter((id) => id >= FIRST_FLOOD_FILL && id < MOVE_UP).length;
  const others = ids.length - fills - floods;
  const corners = agent.selection === "point" ? 1 : 2;
  let at = 0;
  const take = (count) => numbers.subarray(at, (at += count));
  const dense = (inputs, outputs) => ({ weight: take(inputs * outputs), bias: take(outputs), inputs, outputs });
  return {
    ids, fills, floods, others, corners, width,
    stem: dense(agent.sees.length * MARKS, width),
    colors: take(NUM_COLORS * width),
    blocks: Array.from({ length: depth }, () => ({
      convolution: take(9 * width * width),
      across: dense(2 * width, width),
      context: dense(2 * width, width),
    })),
    paint: dense(width, 2 * corners),
    other: others ? dense(2 * width, others * corners) : null,
    operations: dense(2 * width, 2 + others),
  };
}

// Apply a linear layer to the inputs that start at an index of an array.
function through({ weight, bias, inputs, outputs }, from, start = 0) {
  const sums = Float64Array.from(bias);
  for (let i = 0; i < inputs; i++) {
    const value = from[start + i];
    if (value !== 0) for (let o = 0; o < outputs; o++) sums[o] += value * weight[i * outputs + o];
  }
  return sums;
}

// Compute the mean and maximum of each feature over rows of features.
function pooled(features, starts, width) {
  const found = new Float32Array(2 * width);
  for (let f = 0; f < width; f++) {
    let [sum, greatest] = [0, -Infinity];
    for (const start of starts) {
      sum += features[start + f];
      greatest = Math.max(greatest, features[start + f]);
    }
    found[f] = sum / starts.length;
    found[width + f] = greatest;
  }
  return found;
}

function stemOf(network, grids) {
  const { width, stem, colors } = network;
  const cells = grids[0].length;
  const planes = new Float32Array(NUM_COLORS * cells * width);
  for (let color = 0; color < NUM_COLORS; color++)
    for (let cell = 0; cell < cells; cell++) {
      const sums = Float64Array.from(stem.bias, (bias, f) => bias + colors[color * width + f]);
      grids.forEach((grid, place) => {
        const seen = grid[cell];
        const marks = seen < 0 ? [3] : seen === color ? (seen ? [0] : [0, 1]) : seen ? [2] : [1];
        for (const mark of marks)
          for (let f = 0; f < width; f++) sums[f] += stem.weight[(place * MARKS + mark) * width + f];
      });
      planes.set(sums, (color * cells + cell) * width);
    }
  return planes;
}

function overColors(planes, cells, width) {
  return Array.from({ length: cells }, (_, cell) =>
    pooled(planes, Array.from({ length: NUM_COLORS }, (_, color) => (color * cells + cell) * width), width),
  );
}

// Apply a residual block: convolution, features pooled over colors, features pooled over cells.
function blockOf({ convolution, across, context }, planes, inside, [rows, columns], width) {
  const cells = rows * columns;
  const shared = overColors(planes, cells, width).map((features) => through(across, features));
  const after = new Float32Array(planes.length);
  for (let color = 0; color < NUM_COLORS; color++) {
    const own = inside.map((cell) => (color * cells + cell) * width);
    const anywhere = through(context, pooled(planes, own, width));
    for (let cell = 0; cell < cells; cell++) {
      const sums = shared[cell].map((value, f) => value + anywhere[f]);
      const [row, column] = [Math.floor(cell / columns), cell % columns];
      for (let window = 0; window < 9; window++) {
        const [r, c] = [row + Math.floor(window / 3) - 1, column + (window % 3) - 1];
        if (r < 0 || c < 0 || r >= rows || c >= columns) continue;
        const from = (color * cells + r * columns + c) * width;
        for (let i = 0; i < width; i++) {
          const value = planes[from + i];
          const weights = (window * width + i) * width;
          for (let o = 0; o < width; o++) sums[o] += value * convolution[weights + o];
        }
      }
      const at = (color * cells + cell) * width;
      for (let f = 0; f < width; f++) after[at + f] = planes[at + f] + Math.max(sums[f], 0);
    }
  }
  return after;
}

// Compute the log-softmax and the log-sum-exp.
function normalized(logits) {
  const greatest = logits.reduce((one, other) => Math.max(one, other), -Infinity);
  const total = greatest + Math.log(logits.reduce((sum, logit) => sum + Math.exp(logit - greatest), 0));
  return [logits.map((logit) => logit - total), total];
}

// Compute logits over operations, and over cells for each corner and operation.
function logitsOf(agent, network, state) {
  const { width, ids, fills, floods, others, corners } = network;
  const boards = { working: state.cells, input: state.input.cells, clipboard: state.clipboard, selected: state.selected };
  const cells = state.cells.length;
  const inside = [...state.cells.keys()].filter((cell) => state.cells[cell] >= 0);
  let planes = stemOf(network, agent.sees.map((name) => boards[name]));
  for (const block of network.blocks) planes = blockOf(block, planes, inside, agent.canvas, width);
  const shared = overColors(planes, cells, width);
  const places = Array.from({ length: corners }, () => ids.map(() => new Float32Array(cells)));
  for (let cell = 0; cell < cells; cell++) {
    const painted = Array.from({ length: NUM_COLORS }, (_, color) =>
      through(network.paint, planes, (color * cells + cell) * width),
    );
    ids.slice(0, fills + floods).forEach((id, place) => {
      const flood = id >= FIRST_FLOOD_FILL ? 1 : 0;
      for (let corner = 0; corner < corners; corner++)
        places[corner][place][cell] = painted[id % FIRST_FLOOD_FILL][2 * corner + flood];
    });
    if (!others) continue;
    const found = through(network.other, shared[cell]);
    for (let corner = 0; corner < corners; corner++)
      for (let other = 0; other < others; other++)
        places[corner][fills + floods + other][cell] = found[corner * others + other];
  }
  const means = new Float32Array(cells * width);
  shared.forEach((features, cell) => means.set(features.subarray(0, width), cell * width));
  const whole = through(network.operations, pooled(means, inside.map((cell) => cell * width), width));
  const reachable = (id) => (id === RESIZE ? [...state.cells.keys()] : inside);
  const operations = ids.map((id, place) => {
    const kind = place < fills ? 0 : place < fills + floods ? 1 : 2 + place - fills - floods;
    return Math.fround(whole[kind] + normalized(reachable(id).map((cell) => places[0][place][cell]))[1]);
  });
  return { operations, places, reachable };
}

const greatestOf = (values) => values.reduce((best, value, place) => (value > values[best] ? place : best), 0);

// Return the greedy action (the most probable operation with its most probable cells) and the most probable actions.
function decide(agent, network, state, shown = 6) {
  const { operations, places, reachable } = logitsOf(agent, network, state);
  const columns = agent.canvas[1];
  const chances = normalized(operations)[0];
  const actionOf = (place, chosen) => {
    const both = [chosen[0], chosen[chosen.length - 1]];
    return {
      operation: network.ids[place],
      corners: both.flatMap((cell) => [Math.floor(cell / columns), cell % columns]),
    };
  };
  const candidates = network.ids.flatMap((id, place) => {
    const cells = reachable(id);
    const corners = places.map((logits) => {
      const odds = normalized(cells.map((cell) => logits[place][cell]))[0];
      const order = odds.map((_, at) => at).sort((one, other) => odds[other] - odds[one] || one - other);
      return order.slice(0, shown).map((at) => [cells[at], odds[at]]);
    });
    // Operations that ignore the selected cells are listed once.
    if (WITHOUT_CELLS.includes(id))
      return [{ ...actionOf(place, corners.map(([[cell]]) => cell)), chance: Math.exp(chances[place]) }];
    const [first, second = [[null, 0]]] = corners;
    return first.flatMap(([cell, odds]) =>
      second.map(([other, more]) => ({
        ...actionOf(place, other === null ? [cell] : [cell, other]),
        chance: Math.exp(chances[place] + odds + more),
      })),
    );
  });
  const place = greatestOf(operations);
  const cells = reachable(network.ids[place]);
  const chosen = places.map((logits) => cells[greatestOf(cells.map((cell) => logits[place][cell]))]);
  return {
    action: actionOf(place, chosen),
    logits: { operations, places },
    likeliest: candidates.sort((one, other) => other.chance - one.chance).slice(0, shown),
  };
}

// Run a greedy episode; return its actions and the final state.
function playOut(agent, network, input) {
  const actions = [];
  let state = startOf(agent, input);
  while (!isOver(agent, state)) {
    const { action } = decide(agent, network, state, 1);
    actions.push(action);
    state = stepOf(agent, state, action);
  }
  return { actions, state };
}
