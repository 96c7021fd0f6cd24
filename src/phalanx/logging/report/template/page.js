// The page, put together from the parts above.
const empty = (text) => el("p", { class: "card empty" }, text);
const sections = [];

function section(id, title, ...content) {
  sections.push([id, title]);
  document
    .getElementById("main")
    .append(
      el(
        "section",
        { id, "aria-labelledby": `${id}-title` },
        el("h2", { id: `${id}-title` }, title),
        content,
      ),
    );
}

function successValue(value) {
  const [from, to] = value.split(" → ");
  if (!to) return [value];
  const better = parseFloat(to) > parseFloat(from);
  return [el("span", { class: "from" }, `${from} → `), el("span", { class: better ? "to" : null }, to)];
}

function head() {
  const [run] = DATA.runs;
  const pill = (status) =>
    el("span", { class: `pill ${status}` }, status === "unknown" ? "status not known" : status);
  const found = [
    el("p", { class: "eyebrow" }, COMPARING ? "Phalanx · comparison of runs" : "Phalanx · training run"),
  ];
  if (COMPARING) {
    const labels = [...new Set(DATA.runs.flatMap((other) => other.tiles.map((tile) => tile.label)))];
    const cell = (other, label) => {
      const tile = other.tiles.find((candidate) => candidate.label === label);
      return el("td", {}, tile ? tile.value : "–", tile && tile.detail ? el("small", {}, tile.detail) : null);
    };
    const names = el(
      "tr",
      {},
      el("td", {}),
      DATA.runs.map((other, place) =>
        el(
          "th",
          { scope: "col" },
          el("span", { class: "runname" }, swatch(place), other.label, pill(other.status)),
        ),
      ),
    );
    const made = el(
      "tr",
      {},
      el("th", { scope: "row" }, "Made"),
      DATA.runs.map((other) => el("td", {}, el("small", {}, other.subtitle.join(" · ") || "–"))),
    );
    found.push(
      el("h1", {}, DATA.title),
      el(
        "div",
        { class: "summary card" },
        el(
          "table",
          {},
          el("thead", {}, names),
          el(
            "tbody",
            {},
            labels.map((label) =>
              el(
                "tr",
                {},
                el("th", { scope: "row" }, label),
                DATA.runs.map((other) => cell(other, label)),
              ),
            ),
            made,
          ),
        ),
      ),
    );
  } else {
    found.push(el("div", { class: "title" }, el("h1", {}, run.label), pill(run.status)));
    if (run.subtitle.length)
      found.push(
        el(
          "p",
          { class: "subtitle" },
          run.subtitle.map((part) => el("span", {}, part)),
        ),
      );
    if (run.tiles.length)
      found.push(
        el(
          "dl",
          { class: "tiles" },
          run.tiles.map((tile) =>
            el(
              "div",
              { class: tile.label === "Success" ? "tile card wide" : "tile card" },
              el("dt", {}, tile.label),
              el("dd", {}, tile.label === "Success" ? successValue(tile.value) : tile.value),
              tile.detail ? el("dd", { class: "detail" }, tile.detail) : null,
            ),
          ),
        ),
      );
  }
  const notes = DATA.runs.flatMap((other) =>
    other.notes.map((note) => (COMPARING ? `${other.label}: ${note}` : note)),
  );
  if (notes.length)
    found.push(
      el(
        "div",
        { class: "notice", id: "notes", role: "note" },
        el(
          "ul",
          {},
          notes.map((note) => el("li", {}, note)),
        ),
      ),
    );
  document.getElementById("head").append(...found);
}

function toolbar() {
  const known = Object.keys(AXES).filter((axis) => DATA.axes.some((axes) => axes[axis]));
  const weight = el("output", {}, String(view.smoothing));
  const slider = el("input", {
    type: "range",
    id: "smoothing",
    min: 0,
    max: 0.98,
    step: 0.02,
    value: view.smoothing,
    input: () => {
      view.smoothing = Number(slider.value);
      weight.textContent = view.smoothing ? trimmed(view.smoothing.toFixed(2)) : "raw";
      redraw();
    },
  });
  const axis = segments(
    "Horizontal axis",
    known.map((name) => [name, AXES[name]]),
    view.axis,
    (name) => {
      view.axis = name;
      setZoom(null);
    },
  );
  const unzoom = el(
    "button",
    { type: "button", class: "button", id: "unzoom", hidden: true, click: () => setZoom(null) },
    "Reset zoom",
  );
  const nav = el(
    "nav",
    { "aria-label": "Parts of the report" },
    sections.map(([id, title]) => el("a", { href: `#${id}` }, title)),
  );
  document.getElementById("toolbar").append(
    el(
      "div",
      { class: "wrap" },
      nav,
      DATA.charts.length
        ? [
            unzoom,
            el("div", { class: "control" }, axis),
            el(
              "label",
              {
                class: "control",
                title: "An exponential mean; the values themselves stay visible behind it",
              },
              "Smoothing",
              slider,
              weight,
            ),
          ]
        : [],
    ),
  );
}

function body() {
  const drawn = (group, height) =>
    DATA.charts.filter((chart) => chart.group === group).map((chart) => new Chart(chart, height).element);
  const evaluated = DATA.charts.filter((chart) => chart.group === "Evaluation");
  const bars = familyBars();
  if (evaluated.length || bars) {
    const [first, ...others] = evaluated.map((chart, place) => new Chart(chart, place ? 190 : 300).element);
    section(
      "evaluation",
      "Evaluation",
      first && bars ? el("div", { class: "charts pair" }, first, bars) : (first ?? bars),
      others.length ? el("div", { class: "charts below" }, others) : null,
    );
  } else section("evaluation", "Evaluation", empty("No evaluation on held-out tasks yet."));
  for (const addSection of panelSections) addSection();
  const groups = DATA.groups
    .filter((group) => !["Evaluation", "Throughput"].includes(group))
    .map((group) => [group, drawn(group, 180)])
    .filter(([, found]) => found.length);
  section(
    "training",
    "Training",
    groups.length
      ? groups.map(([group, found]) => [
          el("h3", { class: "group" }, group),
          el("div", { class: "charts" }, found),
        ])
      : empty("No metrics yet."),
  );
  const rates = drawn("Throughput", 180);
  section(
    "throughput",
    "Throughput",
    rates.length ? el("div", { class: "charts fit" }, rates) : empty("No throughput was logged."),
  );
  const left = DATA.runs.map((run) => [run.label, run.left_out]).filter(([, count]) => count);
  const said = left
    .map(
      ([label, count]) =>
        `${grouped(count)} older ${count === 1 ? "episode" : "episodes"}${COMPARING ? ` of ${label}` : ""}`,
    )
    .join(" and ");
  section(
    "episodes",
    "Episodes",
    DATA.episodes.length ? episodeViewer() : empty("No sampled episodes yet."),
    said ? el("p", { class: "left-out" }, `Left out to keep the page small: ${said}.`) : null,
  );
  section("config", "Config", configTable() ?? empty("No config was found."));
  document
    .getElementById("foot")
    .append(
      "Drag across a chart to zoom, double-click to see everything. To renew this page: ",
      el("code", {}, `phalanx report ${DATA.runs.map((run) => run.path).join(" ")}`),
    );
}

head();
body();
toolbar();
