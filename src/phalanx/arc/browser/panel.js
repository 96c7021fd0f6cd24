// Panel with the trained agent: the reader selects or draws a task and watches the network act on it.
const VERDICTS = {
  right: ["solved", "✓", "submitted: correct"],
  wrong: ["unsolved", "✕", "submitted: wrong"],
  late: ["unsolved", "✕", "not submitted"],
  unknown: ["unknown", "?", "submitted"],
};

function verdictOf(state, output) {
  if (!state.submitted) return "late";
  if (output === null) return "unknown";
  return sameGrid(state, output) ? "right" : "wrong";
}

// Describe a task by its family, unless the task name contains it, and its size.
const factsOf = ({ task, family }, height, width) =>
  [family && !task.startsWith(family) ? family : null, `${height} × ${width}`].filter((part) => part).join(" · ");

function agentPanel(agent) {
  const network = networkOf(agent);
  const verdicts = new Map();
  const shown = { puzzle: null, trace: [], at: 0, timer: null, editing: false, color: 1, family: "", solving: false };
  const list = el("ul", { "aria-label": "Held-out tasks" });
  const tally = el("span", { class: "muted", "aria-live": "polite" });
  const caption = el("div", { class: "caption" });
  const verdict = el("span", { class: "pill", "aria-live": "polite" });
  const where = el("output", {});
  const likely = el("ol", { class: "likely", "aria-label": "Most probable actions" });
  const done = el("ol", { class: "done", "aria-label": "Actions so far" });
  const boards = {
    input: makeBoard(agent, "Input", (row, column, color) => painted("input", row, column, color)),
    working: makeBoard(agent, "The agent’s grid"),
    output: makeBoard(agent, "Expected", (row, column, color) => painted("output", row, column, color)),
  };
  const button = (name, label, act) =>
    el("button", { type: "button", "data-act": name, "aria-label": label, title: label, click: act }, glyph(name));
  const play = button("play", "Run the agent", () => (shown.timer ? stop() : start()));

  // The current state, the network's output for it, and the selected action.
  function moment(at = shown.at) {
    const found = shown.trace[at];
    if (!found.thought && !isOver(agent, found.state)) found.thought = decide(agent, network, found.state);
    return found;
  }

  function stop() {
    clearInterval(shown.timer);
    shown.timer = null;
    play.replaceChildren(glyph("play"));
    play.setAttribute("aria-label", "Run the agent");
  }

  function start() {
    if (isOver(agent, moment().state)) go(-shown.at);
    shown.timer = setInterval(() => (isOver(agent, moment().state) ? stop() : go(1)), PLAY_MILLISECONDS + 150);
    play.replaceChildren(glyph("pause"));
    play.setAttribute("aria-label", "Pause");
  }

  function go(by) {
    for (const target = Math.max(shown.at + by, 0); shown.at !== target; shown.at += by > 0 ? 1 : -1) {
      const { state, thought } = moment();
      if (by < 0) continue;
      if (isOver(agent, state)) break;
      shown.trace[shown.at + 1] ??= { state: stepOf(agent, state, thought.action) };
    }
    if (by < 0 && shown.timer) stop();
    draw();
  }

  function draw() {
    const { puzzle, at, trace } = shown;
    const { state, thought } = moment();
    const over = isOver(agent, state);
    const corners = thought && !WITHOUT_CELLS.includes(thought.action.operation) ? thought.action.corners : null;
    boards.input.draw(puzzle.input);
    boards.working.draw(state, { corners, changed: at ? trace[at - 1].state : null });
    boards.output.element.hidden = puzzle.output === null;
    if (puzzle.output) boards.output.draw(puzzle.output);
    addAnswer.hidden = puzzle.output !== null || !shown.editing;
    where.textContent = over ? `ended after ${state.steps} steps` : `step ${state.steps} of at most ${agent.max_steps}`;
    const found = over ? verdictOf(state, puzzle.output) : null;
    if (found && puzzle.place !== null) mark(puzzle.place, found);
    verdict.className = `pill ${found ? VERDICTS[found][0] : ""}`;
    verdict.textContent = found ? VERDICTS[found][2] : at ? "running" : "not started";
    const same = (one, other) => one.operation === other.operation && String(one.corners) === String(other.corners);
    likely.replaceChildren(
      ...(over ? [] : thought.likeliest).map((action) => {
        const fill = el("i", { class: "after" });
        fill.style.width = `${100 * action.chance}%`;
        fill.style.background = color(0);
        const chosen = same(action, thought.action);
        return el(
          "li",
          { class: chosen ? "chosen" : null },
          el("span", { class: "name" }, inWords(agent, action)),
          el("span", { class: "track" }, fill),
          el("span", { class: "chance" }, action.chance < 5e-4 ? "< 0.1%" : percent(action.chance)),
        );
      }),
    );
    if (over) likely.append(el("li", { class: "muted" }, "The episode has ended."));
    done.replaceChildren(
      ...trace.slice(0, -1).map(({ thought }, step) =>
        el(
          "li",
          {},
          el(
            "button",
            { type: "button", "aria-current": String(step + 1 === at), click: () => go(step + 1 - shown.at) },
            inWords(agent, thought.action),
          ),
        ),
      ),
    );
    if (trace.length === 1) done.append(el("li", { class: "muted" }, "No actions yet: press play or step."));
  }

  // Start a new episode on a task.
  function begin(puzzle) {
    stop();
    Object.assign(shown, { puzzle, trace: [{ state: startOf(agent, puzzle.input) }], at: 0 });
    const { height, width } = puzzle.input;
    caption.replaceChildren(
      el("strong", {}, puzzle.task),
      verdict,
      el("span", { class: "muted" }, factsOf(puzzle, height, width)),
    );
    for (const item of list.children)
      item.firstChild.setAttribute("aria-current", String(Number(item.dataset.place) === puzzle.place));
    sizes.forEach((show) => show());
    draw();
  }

  function choose(place) {
    const { task, family, input, output } = agent.puzzles[place];
    edit(false);
    begin({
      task,
      family,
      place,
      input: gridOf(agent, input),
      output: output && gridOf(agent, output),
    });
  }

  function mark(place, found) {
    verdicts.set(place, found);
    const item = list.querySelector(`[data-place="${place}"] .mark`);
    const [name, sign, text] = VERDICTS[found];
    if (item) {
      item.className = `mark ${name}`;
      item.textContent = sign;
      item.title = text;
    }
    const right = [...verdicts.values()].filter((one) => one === "right").length;
    tally.textContent = `${right} of ${verdicts.size} correct`;
  }

  function drawList() {
    const chosen = agent.puzzles
      .map((puzzle, place) => [puzzle, place])
      .filter(([{ family }]) => !shown.family || family === shown.family);
    list.replaceChildren(
      ...chosen.map(([{ task, family, input }, place]) =>
        el(
          "li",
          { "data-place": place },
          el(
            "button",
            { type: "button", click: () => choose(place) },
            thumbnail(agent, input),
            el("span", { class: "task" }, task),
            el("span", { class: "facts" }, factsOf({ task, family }, input.length, input[0].length)),
            el("span", { class: "mark" }, ""),
          ),
        ),
      ),
    );
    for (const [, place] of chosen) if (verdicts.has(place)) mark(place, verdicts.get(place));
  }

  // Solve the tasks one at a time with a timer, so that the page stays responsive.
  function solveAll() {
    if (shown.solving) return;
    shown.solving = solveButton.disabled = true;
    const next = (place) => {
      if (place === agent.puzzles.length) {
        shown.solving = solveButton.disabled = false;
        return;
      }
      const { input, output } = agent.puzzles[place];
      const { state } = playOut(agent, network, gridOf(agent, input));
      mark(place, verdictOf(state, output && gridOf(agent, output)));
      setTimeout(next, 0, place + 1);
    };
    next(0);
  }

  function edit(on) {
    shown.editing = on;
    boards.input.edit(on);
    boards.output.edit(on);
    boards.input.say(on ? "Input: click to paint" : "Input");
    boards.output.say(on ? "Expected: click to paint" : "Expected");
    tools.hidden = !on;
    drawButton.setAttribute("aria-pressed", String(on));
  }

  // Let the reader draw a task, starting with the current one.
  function drawOwn() {
    const { input } = shown.puzzle;
    edit(true);
    begin({ task: "Your own task", family: null, place: null, input: { ...input }, output: null });
  }

  function painted(name, row, column, chosen = shown.color) {
    const { puzzle } = shown;
    const cell = row * agent.canvas[1] + column;
    if (puzzle[name].cells[cell] === chosen) return;
    const cells = puzzle[name].cells.slice();
    cells[cell] = chosen;
    begin({ ...puzzle, [name]: { ...puzzle[name], cells } });
  }

  function resize(rows, columns) {
    const { puzzle } = shown;
    const height = Math.min(Math.max(puzzle.input.height + rows, 1), agent.canvas[0]);
    const width = Math.min(Math.max(puzzle.input.width + columns, 1), agent.canvas[1]);
    const cut = ({ cells }) => ({ height, width, cells: resized(agent, cells, height, width) });
    begin({ ...puzzle, input: cut(puzzle.input), output: puzzle.output && cut(puzzle.output) });
  }

  const sizes = [];
  const stepper = (label, side, rows, columns) => {
    const size = el("output", {});
    sizes.push(() => (size.textContent = shown.puzzle.input[side]));
    const change = (sign, text) =>
      el("button", { type: "button", "aria-label": text, click: () => resize(sign * rows, sign * columns) }, sign < 0 ? "−" : "+");
    return el("span", { class: "stepper" }, label, change(-1, `Fewer ${side}`), size, change(1, `More ${side}`));
  };
  const swatches = agent.palette.map((paint, place) => {
    const patch = el("button", {
      type: "button",
      class: "paint",
      "aria-label": `Color ${place}`,
      "aria-pressed": String(place === shown.color),
      click: () => {
        shown.color = place;
        swatches.forEach((other, at) => other.setAttribute("aria-pressed", String(at === place)));
      },
    });
    patch.style.background = paint;
    return patch;
  });
  const addAnswer = el(
    "button",
    { type: "button", class: "button", click: () => begin({ ...shown.puzzle, output: { ...shown.puzzle.input } }) },
    "Add the expected output",
  );
  const blank = () => {
    const { input } = shown.puzzle;
    begin({ ...shown.puzzle, input: { ...input, cells: input.cells.map((one) => Math.min(one, 0)) }, output: null });
  };
  const tools = el(
    "div",
    { class: "paints", hidden: true },
    el("span", { class: "swatches", role: "group", "aria-label": "Color to paint with" }, swatches),
    stepper("Rows", "height", 1, 0),
    stepper("Columns", "width", 0, 1),
    el("button", { type: "button", class: "button", click: blank }, "Blank"),
    addAnswer,
  );
  const drawButton = el("button", { type: "button", class: "button", "aria-pressed": "false", click: drawOwn }, "Draw your own");
  const solveButton = el("button", { type: "button", class: "button", click: solveAll }, `Solve all ${agent.puzzles.length}`);
  const families = [...new Set(agent.puzzles.map(({ family }) => family).filter((family) => family))];
  const pick = el(
    "select",
    {
      class: "button",
      "aria-label": "Task family",
      change: () => {
        shown.family = pick.value;
        drawList();
      },
    },
    el("option", { value: "" }, "All families"),
    families.map((family) => el("option", { value: family }, family)),
  );
  drawList();
  if (agent.puzzles.length) choose(0);
  else {
    const [height, width] = [Math.min(agent.canvas[0], 5), Math.min(agent.canvas[1], 5)];
    const input = gridOf(agent, Array.from({ length: height }, () => "0".repeat(width)));
    edit(true);
    begin({ task: "Your own task", family: null, place: null, input, output: null });
  }
  return el(
    "div",
    { class: "viewer card agent" },
    el(
      "div",
      { class: "reel" },
      el(
        "div",
        { class: "filters" },
        el("div", { class: "row" }, drawButton, agent.puzzles.length ? solveButton : null),
        el("div", { class: "row" }, families.length > 1 ? pick : null, tally),
      ),
      list,
    ),
    el(
      "div",
      { class: "stage" },
      caption,
      el("div", { class: "boards" }, boards.input.element, boards.working.element, boards.output.element),
      tools,
      el(
        "div",
        { class: "transport" },
        button("first", "Back to the start", () => go(-shown.at)),
        button("previous", "Step back", () => go(-1)),
        play,
        button("next", "Step", () => go(1)),
        where,
      ),
      el(
        "div",
        { class: "thoughts" },
        el("div", {}, el("h3", {}, "Next action"), likely),
        el("div", {}, el("h3", {}, "Actions so far"), done),
      ),
    ),
  );
}

// One panel per run with a policy; a comparison shows one of them at a time.
panelSections.push(() => {
  const policies = DATA.panels.arc_policy;
  const names = { working: "the working grid", input: "the input", clipboard: "the clipboard", selected: "the selection" };
  const place = el("div", {});
  const show = (number) => place.replaceChildren(agentPanel(policies[number]));
  const [{ sees, seeds }] = policies;
  section(
    "agent",
    "Try the agent",
    el(
      "p",
      { class: "muted about" },
      "The trained network runs in this page. Select a task that it was not trained on, or draw one, and watch it act. ",
      `It observes ${sees.map((name) => names[name]).join(" and ")}, and no examples of the rule.`,
      seeds > 1 ? ` This is the first of ${seeds} seeds.` : "",
    ),
    policies.length > 1
      ? segments(
          "Agent",
          policies.map(({ run }, number) => [number, DATA.runs[run].label]),
          0,
          show,
        )
      : null,
    place,
  );
  show(0);
});
