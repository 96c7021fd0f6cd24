// Assembles the page.
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
  const improved = parseFloat(to) > parseFloat(from);
  return [el("span", { class: "from" }, `${from} → `), el("span", { class: improved ? "to" : null }, to)];
}

function head() {
  const [run] = DATA.runs;
  const pill = (status) =>
    el("span", { class: `pill ${status}` }, status === "unknown" ? "unknown status" : status);
  const elements = [
    el("p", { class: "eyebrow" }, COMPARING ? "Phalanx · run comparison" : "Phalanx · training run"),
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
      DATA.runs.map((other, index) =>
        el(
          "th",
          { scope: "col" },
          el("span", { class: "runname" }, swatch(index), other.label, pill(other.status)),
        ),
      ),
    );
    const provenance = el(
      "tr",
      {},
      el("th", { scope: "row" }, "Run"),
      DATA.runs.map((other) => el("td", {}, el("small", {}, other.subtitle.join(" · ") || "–"))),
    );
    elements.push(
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
            provenance,
          ),
        ),
      ),
    );
  } else {
    elements.push(el("div", { class: "title" }, el("h1", {}, run.label), pill(run.status)));
    if (run.subtitle.length)
      elements.push(
        el(
          "p",
          { class: "subtitle" },
          run.subtitle.map((part) => el("span", {}, part)),
        ),
      );
    if (run.tiles.length)
      elements.push(
        el(
          "dl",
          { class: "tiles" },
          run.tiles.map((tile) =>
            el(
              "div",
              { class: tile.label === "Success rate" ? "tile card wide" : "tile card" },
              el("dt", {}, tile.label),
              el("dd", {}, tile.label === "Success rate" ? successValue(tile.value) : tile.value),
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
    elements.push(
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
  document.getElementById("head").append(...elements);
}

function toolbar() {
  const available = Object.keys(AXES).filter((axis) => DATA.axes.some((axes) => axes[axis]));
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
    available.map((name) => [name, AXES[name]]),
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
    { "aria-label": "Sections" },
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
                title: "Weight of the exponential moving average; the original values remain visible",
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
  const chartsOf = (group, height) =>
    DATA.charts.filter((chart) => chart.group === group).map((chart) => new Chart(chart, height).element);
  const evaluationSpecs = DATA.charts.filter((chart) => chart.group === "Evaluation");
  const bars = groupBars();
  if (evaluationSpecs.length || bars) {
    const [first, ...others] = evaluationSpecs.map((chart, index) => new Chart(chart, index ? 190 : 300).element);
    section(
      "evaluation",
      "Evaluation",
      first && bars ? el("div", { class: "charts pair" }, first, bars) : (first ?? bars),
      others.length ? el("div", { class: "charts below" }, others) : null,
    );
  } else section("evaluation", "Evaluation", empty("No evaluations yet."));
  if (DATA.policies.length) section("policy", "Episodes of the trained policy", policyEpisodes());
  const groups = DATA.chart_groups
    .filter((group) => !["Evaluation", "Throughput"].includes(group))
    .map((group) => [group, chartsOf(group, 180)])
    .filter(([, elements]) => elements.length);
  section(
    "training",
    "Training",
    groups.length
      ? groups.map(([group, elements]) => [
          el("h3", { class: "group" }, group),
          el("div", { class: "charts" }, elements),
        ])
      : empty("No metrics yet."),
  );
  const rates = chartsOf("Throughput", 180);
  section(
    "throughput",
    "Throughput",
    rates.length ? el("div", { class: "charts fit" }, rates) : empty("No throughput metrics."),
  );
  const omitted = DATA.runs
    .map((run) => [run.label, run.num_omitted])
    .filter(([, count]) => count)
    .map(
      ([label, count]) =>
        `${grouped(count)} older ${count === 1 ? "episode" : "episodes"}${COMPARING ? ` of ${label}` : ""}`,
    )
    .join(" and ");
  section(
    "episodes",
    "Episodes",
    DATA.episodes.length ? episodeViewer() : empty("No sampled episodes yet."),
    omitted ? el("p", { class: "omitted" }, `Omitted to limit the size of the page: ${omitted}.`) : null,
  );
  section("config", "Config", configTable() ?? empty("No config."));
  document
    .getElementById("foot")
    .append(
      "Drag across a chart to zoom; double-click to reset. To update this page, run ",
      el("code", {}, `phalanx report ${DATA.runs.map((run) => run.path).join(" ")}`),
    );
}

head();
body();
toolbar();
