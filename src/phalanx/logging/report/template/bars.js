// Success by family of tasks: bars of the last evaluation, with the first one faintly behind.
function bar(label, place, row) {
  const said = [`${label}: ${percent(row.value)}`];
  const track = el("div", { class: "track" });
  const piece = (kind, share) => {
    const mark = el("i", { class: kind });
    if (kind === "pass") mark.style.left = `calc(${100 * share}% - 1px)`;
    else {
      mark.style.width = `${100 * share}%`;
      mark.style.background = color(place);
    }
    track.append(mark);
  };
  if (row.before !== null) {
    piece("before", row.before);
    said.push(`first ${percent(row.before)}`);
  }
  if (row.value !== null) piece("after", row.value);
  const ks = Object.keys(row.pass).sort((a, b) => a - b);
  const most = ks[ks.length - 1];
  if (ks.length && most !== "1") {
    piece("pass", row.pass[most]);
    said.push(`pass@${most} ${percent(row.pass[most])}`);
  }
  if (row.episodes !== null) said.push(`${grouped(row.episodes)} episodes`);
  if (row.similarity !== null) said.push(`similarity ${percent(row.similarity)}`);
  return el(
    "div",
    { class: "bar", role: "img", "aria-label": `${row.name}, ${said.join(", ")}`, title: said.join("\n") },
    track,
    el("span", {}, percent(row.value)),
  );
}

// Alone, a family has a bar for each mode; comparing, one for each run in the mode that is chosen.
function familyBars() {
  const all = DATA.runs.flatMap((run, place) =>
    run.families.map((found) => ({ ...found, run: place, name: `${found.split}, ${found.mode}` })),
  );
  if (!all.length) return null;
  const modes = [...new Set(all.map((found) => found.name))];
  const short = new Set(all.map((found) => found.split)).size < 2;
  const shortened = (name) => (short ? name.slice(name.lastIndexOf(", ") + 2) : name);
  const body = el("div");
  function draw(mode) {
    const shown = COMPARING
      ? all
          .filter((found) => found.name === mode)
          .map((found) => ({ ...found, color: found.run, label: DATA.runs[found.run].label }))
      : all.map((found) => ({ ...found, color: modes.indexOf(found.name), label: shortened(found.name) }));
    const names = [...new Set(shown.flatMap((found) => found.rows.map((row) => row.name)))];
    const families = names.map((name) =>
      el(
        "div",
        { class: "family", "data-family": name },
        el("div", { class: "name" }, name),
        el(
          "div",
          {},
          shown.flatMap((found) => {
            const row = found.rows.find((other) => other.name === name);
            return row ? [bar(found.label, found.color, row)] : [];
          }),
        ),
      ),
    );
    const legend = el(
      "ul",
      { class: "legend" },
      shown.map((found) =>
        el("li", {}, swatch(found.color), `${found.label}, update ${grouped(found.update)}`),
      ),
    );
    const passes = shown
      .filter((found) => Object.keys(found.rows[0].pass).length)
      .map((found) =>
        el(
          "p",
          { class: "passes" },
          `${found.label}: `,
          Object.entries(found.rows[0].pass)
            .sort(([a], [b]) => a - b)
            .flatMap(([k, share], place) => [place ? " · " : "", `pass@${k} `, el("b", {}, percent(share))]),
        ),
      );
    const before = shown.some((found) => found.rows.some((row) => row.before !== null));
    const ticked = passes.length > 0;
    const key = [before ? "Faint: the first evaluation." : "", ticked ? "Tick: pass@k of the largest k." : ""]
      .join(" ")
      .trim();
    body.replaceChildren(...families, legend, ...passes, ...(key ? [el("p", { class: "passes" }, key)] : []));
  }
  const chooser =
    COMPARING && modes.length > 1
      ? segments(
          "Mode of evaluation",
          modes.map((name) => [name, shortened(name)]),
          modes[0],
          draw,
        )
      : null;
  draw(modes[0]);
  return el(
    "div",
    { class: "bars card", id: "families" },
    el("header", {}, el("h3", {}, "Success by task family"), chooser),
    body,
  );
}
