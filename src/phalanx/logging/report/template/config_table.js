// Searchable table of the settings. When runs are compared, settings that differ are highlighted.
function configTable() {
  const keys = [...new Set(DATA.runs.flatMap((run) => Object.keys(run.config)))];
  if (!keys.length) return null;
  const withConfig = DATA.runs.filter((run) => Object.keys(run.config).length);
  const differs = (key) => COMPARING && new Set(DATA.runs.map((run) => run.config[key])).size > 1;
  const differing = keys.filter(differs);
  const rows = keys.map((key) => {
    const nameStart = key.lastIndexOf(".") + 1;
    const cells = DATA.runs.map((run) =>
      key in run.config ? el("td", {}, run.config[key]) : el("td", { class: "absent" }, "not set"),
    );
    return {
      key,
      text: [key, ...DATA.runs.map((run) => run.config[key] ?? "")].join("\n").toLowerCase(),
      row: el(
        "tr",
        { class: differs(key) ? "differs" : null, "data-key": key },
        el("th", { scope: "row" }, key.slice(0, nameStart), el("b", {}, key.slice(nameStart))),
        cells,
      ),
    };
  });
  const search = el("input", {
    type: "search",
    placeholder: "Search keys and values",
    "aria-label": "Search the settings",
    input: apply,
  });
  const onlyDiffering = el("input", { type: "checkbox", change: apply });
  onlyDiffering.checked = differing.length > 0;
  const count = el("span", { "aria-live": "polite" });
  function apply() {
    const query = search.value.trim().toLowerCase();
    let shown = 0;
    for (const { key, text, row } of rows) {
      row.hidden = !text.includes(query) || (onlyDiffering.checked && !differs(key));
      shown += row.hidden ? 0 : 1;
    }
    count.textContent = shown === keys.length ? `${keys.length} settings` : `${shown} of ${keys.length} settings`;
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
          DATA.runs.map((run, index) =>
            el("th", { scope: "col" }, el("span", { class: "runname" }, swatch(index), run.label)),
          ),
        ),
      )
    : null;
  const summary = !COMPARING
    ? `${keys.length} settings`
    : withConfig.length < 2
      ? "Fewer than two configs to compare"
      : differing.length
        ? `${differing.length} of ${keys.length} settings differ`
        : "The configs are equal";
  const details = el(
    "details",
    { class: "config card", open: COMPARING && differing.length > 0 },
    el("summary", {}, summary),
    el(
      "div",
      { class: "tools" },
      search,
      differing.length ? el("label", {}, onlyDiffering, "Only differing settings") : null,
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
