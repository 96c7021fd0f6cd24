// Recorded episodes of the trained policy: a list, and a viewer with the policy's most probable actions.
const CELL = 20;
const OUTCOMES = { true: ["solved", "✓", "solved"], false: ["unsolved", "✕", "failed"], null: ["unknown", "", ""] };
// The official colors of ARC.
const PALETTE = "#000000 #0074D9 #FF4136 #2ECC40 #FFDC00 #AAAAAA #F012BE #FF851B #7FDBFF #870C25".split(" ");
const stepsText = (count) => `${grouped(count)} ${count === 1 ? "step" : "steps"}`;
const countResult = (episodes, solved) => episodes.filter((episode) => episode.solved === solved).length;

// Draw rows of digits as colored cells. Cells that differ from those in `before` are animated.
function drawCells(rows, label, before = null, box = null) {
  const [height, width] = [rows.length, rows[0]?.length ?? 0];
  const rectangle = (row, column, rowSpan, columnSpan, attributes) =>
    svg("rect", { x: column * CELL, y: row * CELL, width: columnSpan * CELL, height: rowSpan * CELL, ...attributes });
  const cells = rows.flatMap((row, r) =>
    [...row].map((digit, c) => {
      const changed = before && before[r]?.[c] !== digit;
      return rectangle(r, c, 1, 1, { fill: PALETTE[digit] ?? "none", class: changed ? "fresh" : null });
    }),
  );
  if (box) cells.push(...["target under", "target"].map((name) => rectangle(...box, { class: name })));
  const viewBox = `-1 -1 ${width * CELL + 2} ${height * CELL + 2}`;
  const picture = svg("svg", { class: "cells", role: "img", viewBox, "aria-label": label }, cells);
  picture.style.maxWidth = `${Math.min(56, 340 / Math.max(width, height, 1)) * width}px`;
  return picture;
}

// Split the description of an action, such as "Fill 3, rows 1 to 2, column 4", into its name and cells.
function parseAction(action) {
  const [, name, cells, top, bottom, left, right] = action.match(
    /^(.*?)(?:, (rows? (\d+)(?: to (\d+))?, columns? (\d+)(?: to (\d+))?))?$/s,
  );
  const box = cells && [top - 1, left - 1, (bottom ?? top) - top + 1, (right ?? left) - left + 1];
  return { name, cells, box };
}

// Show an action; in an environment with grids, with a patch of its color and its cells in gray.
function actionText(action, hasGrids) {
  if (!hasGrids) return action;
  const { name, cells } = parseAction(action);
  const fill = name.match(/^(?:Fill|Flood fill) (\d)$/);
  const patch = fill && el("i", { class: "patch", "aria-hidden": "true" });
  if (patch) patch.style.background = PALETTE[fill[1]];
  return [patch, name, cells ? el("span", { class: "muted" }, ` ${cells}`) : null];
}

function probabilityBar(text, isChosen, probability) {
  const fill = el("i", { class: "after" });
  fill.style.width = `${100 * Math.min(probability ?? 0, 1)}%`;
  fill.style.background = color(0);
  const hasBar = probability !== null;
  return el(
    "li",
    { class: isChosen ? "chosen" : null },
    el("span", { class: "name" }, text),
    hasBar ? el("span", { class: "track" }, fill) : null,
    hasBar ? el("span", { class: "chance" }, probability < 5e-4 ? "< 0.1%" : percent(probability)) : null,
  );
}

function policyViewer(episodes) {
  const shown = { episode: null, group: "", result: "all" };
  const player = makePlayer(show, () => Math.max(shown.episode.frames - 1, 0));
  const list = el("ul", { "aria-label": "Episodes" });
  const caption = el("div", { class: "caption" });
  const boards = el("div", { class: "boards" });
  const where = el("output", {});
  const likely = el("ol", { class: "likely", "aria-label": "Most probable actions" });
  const value = el("p", { class: "value muted" });
  const done = el("ol", { class: "done", "aria-label": "Actions so far" });
  const nameOf = (episode) => episode.task || `Episode ${episode.number + 1}`;
  const factsOf = (episode) =>
    [
      episode.group && !nameOf(episode).startsWith(episode.group) ? episode.group : null,
      stepsText(episode.num_steps),
      episode.total_reward === null ? null : `return ${number(episode.total_reward)}`,
    ]
      .filter((part) => part)
      .join(" · ");

  function drawFrame(frame, before, action) {
    if (frame === undefined) return [el("span", { class: "muted" }, "The images of this episode are too large.")];
    if (typeof frame === "string") return [el("img", { src: imageUrl(frame), alt: where.textContent })];
    return Object.entries(frame).map(([title, rows]) => {
      const box = action && title === "Working grid" ? parseAction(action).box : null;
      const label = `${title}: ${rows.join(", ")}`;
      return el("figure", { class: "board" }, el("figcaption", {}, title), drawCells(rows, label, before?.[title], box));
    });
  }

  async function show(at) {
    const { episode } = shown;
    const frames = await episodeImages(episode);
    // Another step may have been selected during decompression.
    if (shown.episode !== episode || !player.isAt(at)) return;
    const { num_steps: numSteps, decisions } = episode;
    const [decision, hasGrids] = [decisions[at], typeof frames[at] === "object"];
    const cut = numSteps > decisions.length ? `, ${grouped(decisions.length)} of them shown` : "";
    where.textContent = decision ? `step ${at} of ${grouped(numSteps)}` : `ended after ${stepsText(numSteps)}${cut}`;
    boards.replaceChildren(...drawFrame(frames[at], frames[at - 1], decision?.actions[decision.chosen]));
    const bars = decision?.actions.map((action, index) =>
      probabilityBar(actionText(action, hasGrids), index === decision.chosen, decision.probabilities[index]),
    );
    const normals = decision?.normals.map(({ name, mean, deviation }) =>
      el("li", {}, name, el("span", {}, `${number(mean)} ± ${number(deviation)}`)),
    );
    likely.replaceChildren(...(bars ?? [el("li", { class: "muted" }, "The episode has ended.")]), ...(normals ?? []));
    const hasValue = decision && decision.value !== null;
    value.textContent = hasValue ? `Estimated return from this state: ${number(decision.value)}` : "";
    done.replaceChildren(
      ...decisions.slice(0, at).map(({ actions, chosen }, step) => {
        const attributes = { type: "button", "aria-current": String(step + 1 === at), click: () => player.go(step + 1) };
        return el("li", {}, el("button", attributes, actionText(actions[chosen], hasGrids)));
      }),
    );
    if (!at) done.append(el("li", { class: "muted" }, "No actions yet: press play or step."));
    done.scrollTop = done.scrollHeight;
  }

  function choose(episode) {
    shown.episode = episode;
    for (const item of list.children)
      item.firstChild.setAttribute("aria-current", String(item.episode === episode));
    const [result, , text] = OUTCOMES[episode.solved];
    const pill = text ? el("span", { class: `pill ${result}` }, text) : "";
    caption.replaceChildren(el("strong", {}, nameOf(episode)), pill, el("span", { class: "muted" }, factsOf(episode)));
    player.go(0);
  }

  function listItem(episode) {
    const [result, mark, text] = OUTCOMES[episode.solved];
    const thumbnail = el("span", { class: "thumbnail" });
    episodeImages(episode).then(([frame]) => {
      if (typeof frame === "object") thumbnail.append(drawCells(Object.values(frame)[0] ?? [], ""));
    });
    const button = el(
      "button",
      { type: "button", click: () => choose(episode) },
      thumbnail,
      el("span", { class: "task" }, nameOf(episode)),
      el("span", { class: "facts" }, factsOf(episode)),
      el("span", { class: `mark ${result}`, title: text }, mark),
    );
    const item = el("li", {}, button);
    item.episode = episode;
    return item;
  }

  function select(changes) {
    Object.assign(shown, changes);
    const selected = episodes.filter(
      ({ group, solved }) =>
        (!shown.group || group === shown.group) && (shown.result === "all" || String(solved) === shown.result),
    );
    list.replaceChildren(...selected.map(listItem));
    if (selected.length) choose(selected.includes(shown.episode) ? shown.episode : selected[0]);
    else list.append(el("li", { class: "muted" }, el("span", {}, "No episodes.")));
  }

  const groups = [...new Set(episodes.map(({ group }) => group).filter((group) => group))];
  const groupMenu = el(
    "select",
    { class: "button", "aria-label": "Group", change: () => select({ group: groupMenu.value }) },
    ["", ...groups].map((group) => el("option", { value: group }, group || "All groups")),
  );
  const results = [
    ["all", `All ${episodes.length}`],
    ["true", `Solved ${countResult(episodes, true)}`],
    ["false", `Failed ${countResult(episodes, false)}`],
  ];
  const hasResults = episodes.some(({ solved }) => solved !== null);
  const resultFilter = hasResults ? segments("Result", results, "all", (result) => select({ result })) : null;
  const onKeyDown = (event) => {
    const offset = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!offset || event.target === groupMenu || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    player.step(offset);
  };
  select({});
  return el(
    "div",
    { class: "viewer card policy", keydown: onKeyDown },
    el(
      "div",
      { class: "reel" },
      el("div", { class: "filters" }, resultFilter, groups.length > 1 ? groupMenu : null),
      list,
    ),
    el(
      "div",
      { class: "stage" },
      caption,
      boards,
      el("div", { class: "transport" }, player.buttons, where),
      el(
        "div",
        { class: "thoughts" },
        el("div", {}, el("h3", {}, "Next action"), likely, value),
        el("div", {}, el("h3", {}, "Actions so far"), done),
      ),
    ),
  );
}

// Describe which episodes are shown and how many are solved. The totals are those of the evaluation.
function policySummary({ evaluation, episodes, update, seeds }) {
  const hasResults = episodes.some(({ solved }) => solved !== null);
  const results = hasResults ? `, ${countResult(episodes, true)} solved and ${countResult(episodes, false)} failed` : "";
  const parts = [];
  if (evaluation) {
    const { num_episodes: total, num_solved: solved, split } = evaluation;
    const groups = episodes.some(({ group }) => group) ? "over the groups, " : "";
    parts.push(
      `In the last evaluation (${split}, update ${grouped(update)}), the greedy policy`,
      solved === null ? `ran ${grouped(total)} episodes.` : `solved ${grouped(solved)} of ${grouped(total)} episodes.`,
      episodes.length === total
        ? "All of them are shown."
        : `${grouped(episodes.length)} of them are shown${results}. They are selected evenly ${groups}regardless of the result.`,
    );
  } else parts.push(`Episodes of the greedy policy after update ${grouped(update)}${results}.`);
  if (seeds > 1) parts.push(`This is the first of ${grouped(seeds)} seeds.`);
  return parts.join(" ");
}

// A comparison shows the episodes of one run at a time.
function policyEpisodes() {
  const summary = el("p", { class: "muted about" });
  const place = el("div", {});
  const show = (index) => {
    summary.textContent = policySummary(DATA.policies[index]);
    place.replaceChildren(policyViewer(DATA.policies[index].episodes));
  };
  show(0);
  const runs = DATA.policies.map(({ run }, index) => [index, DATA.runs[run].label]);
  return [summary, runs.length > 1 ? segments("Policy", runs, 0, show) : null, place];
}
