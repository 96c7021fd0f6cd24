// The config: every key, searchable; of several runs side by side, with the keys that differ marked.
function configTable() {
  const keys = [...new Set(DATA.runs.flatMap((run) => Object.keys(run.config)))];
  if (!keys.length) return null;
  const configured = DATA.runs.filter((run) => Object.keys(run.config).length);
  const differs = (key) => COMPARING && new Set(DATA.runs.map((run) => run.config[key])).size > 1;
  const differing = keys.filter(differs);
  const rows = keys.map((key) => {
    const cut = key.lastIndexOf(".") + 1;
    const cells = DATA.runs.map((run) =>
      key in run.config ? el("td", {}, run.config[key]) : el("td", { class: "absent" }, "not set"),
    );
    return {
      key,
      text: [key, ...DATA.runs.map((run) => run.config[key] ?? "")].join("\n").toLowerCase(),
      row: el(
        "tr",
        { class: differs(key) ? "differs" : null, "data-key": key },
        el("th", { scope: "row" }, key.slice(0, cut), el("b", {}, key.slice(cut))),
        cells,
      ),
    };
  });
  const search = el("input", {
    type: "search",
    placeholder: "Search keys and values",
    "aria-label": "Search the config",
    input: apply,
  });
  const only = el("input", { type: "checkbox", change: apply });
  only.checked = differing.length > 0;
  const count = el("span", { "aria-live": "polite" });
  function apply() {
    const wanted = search.value.trim().toLowerCase();
    let shown = 0;
    for (const { key, text, row } of rows) {
      row.hidden = !text.includes(wanted) || (only.checked && !differs(key));
      shown += row.hidden ? 0 : 1;
    }
    count.textContent = shown === keys.length ? `${keys.length} keys` : `${shown} of ${keys.length} keys`;
  }
  apply();
  const head = COMPARING
    ? el(
        "thead",
        {},
        el(
          "tr",
          {},
          el("th", { scope: "col" }, "Key"),
          DATA.runs.map((run, place) =>
            el("th", { scope: "col" }, el("span", { class: "runname" }, swatch(place), run.label)),
          ),
        ),
      )
    : null;
  const said = !COMPARING
    ? `${keys.length} settings`
    : configured.length < 2
      ? "Too few configs to compare"
      : differing.length
        ? `${differing.length} of ${keys.length} settings differ`
        : "The configs are the same";
  const details = el(
    "details",
    { class: "config card", open: COMPARING && differing.length > 0 },
    el("summary", {}, said),
    el(
      "div",
      { class: "tools" },
      search,
      differing.length ? el("label", {}, only, "Only what differs") : null,
      count,
    ),
    el(
      "div",
      { class: "scroll" },
      el(
        "table",
        {},
        head,
        el(
          "tbody",
          {},
          rows.map(({ row }) => row),
        ),
      ),
    ),
  );
  return details;
}
