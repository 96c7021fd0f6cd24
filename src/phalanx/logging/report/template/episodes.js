// Sampled episodes: a list, and a viewer that steps through the images of one episode.
const PLAY_MILLISECONDS = 550;
const RESULTS = { true: ["solved", "✓"], false: ["unsolved", "✕"], null: ["unknown", "?"] };
const GLYPHS = {
  first: "M2 2h2.5v12H2zM14 2v12L5.5 8z",
  previous: "M10 2v12L2 8z",
  next: "M4 2l8 6-8 6z",
  play: "M3 1l11 7-11 7z",
  pause: "M3 2h3.5v12H3zM9 2h3.5v12H9z",
};

const decompressed = new Map();

// Decompresses the images of an episode: base64 of zlib of a JSON list.
async function episodeImages(episode) {
  if (!decompressed.has(episode)) {
    const stream = new Blob([unbase64(episode.images)]).stream().pipeThrough(new DecompressionStream("deflate"));
    decompressed.set(episode, new Response(stream).json());
  }
  return decompressed.get(episode);
}

// In an <img>, an SVG is a separate document: its ids cannot collide with others, and its scripts do not run.
const imageUrl = (text) => `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;

const glyph = (name) =>
  svg(
    "svg",
    { width: 14, height: 14, viewBox: "0 0 16 16", "aria-hidden": "true" },
    svg("path", { d: GLYPHS[name] }),
  );

// Buttons that step through the frames 0 to `last()` of an episode, of which `show(frame)` draws one.
function makePlayer(show, last) {
  let [at, timer] = [0, null];
  const button = (name, label, act) =>
    el("button", { type: "button", "data-act": name, "aria-label": label, title: label, click: act }, glyph(name));
  const play = button("play", "Play", () => (timer ? stop() : start()));

  function drawPlay(name, label) {
    play.replaceChildren(glyph(name));
    play.setAttribute("aria-label", label);
  }

  function move(frame) {
    at = Math.min(Math.max(frame, 0), last());
    show(at);
  }

  function stop() {
    clearInterval(timer);
    timer = null;
    drawPlay("play", "Play");
  }

  function start() {
    if (at === last()) move(0);
    timer = setInterval(() => (at < last() ? move(at + 1) : stop()), PLAY_MILLISECONDS);
    drawPlay("pause", "Pause");
  }

  function go(frame) {
    stop();
    move(frame);
  }

  const step = (offset) => go(at + offset);
  const buttons = [
    button("first", "First frame", () => go(0)),
    button("previous", "Previous frame", () => step(-1)),
    play,
    button("next", "Next frame", () => step(1)),
  ];
  return { buttons, play, go, step, stop, isAt: (frame) => frame === at };
}

function episodeFacts(episode) {
  const facts = [`update ${grouped(episode.update)}`];
  if (episode.environment !== null) facts.push(`env ${episode.environment}`);
  if (episode.steps !== null)
    facts.push(`${grouped(episode.steps)} ${episode.steps === 1 ? "step" : "steps"}`);
  if (episode.reward !== null) facts.push(`reward ${number(episode.reward)}`);
  return facts;
}

function episodeViewer() {
  const shown = { result: "all", run: "all", episodes: [], episode: null };
  const player = makePlayer(show, () => Math.max(shown.episode.frames.length - 1, 0));
  const list = el("ul", { "aria-label": "Sampled episodes, newest first" });
  const caption = el("div", { class: "caption", "aria-live": "polite" });
  const image = el("img", { alt: "" });
  const picture = el(
    "div",
    {
      class: "picture",
      tabindex: 0,
      role: "group",
      "aria-label": "Image of the episode; use the left and right arrow keys to step",
    },
    image,
  );
  const slider = el("input", {
    type: "range",
    min: 0,
    step: 1,
    "aria-label": "Frame of the episode",
    input: () => player.go(Number(slider.value)),
  });
  const position = el("output", {});
  const stage = el(
    "div",
    { class: "stage" },
    caption,
    picture,
    el("div", { class: "transport" }, player.buttons, slider, position),
  );

  async function show(frame) {
    const { episode } = shown;
    const [name, index] = episode.frames[frame];
    slider.value = frame;
    slider.setAttribute("aria-valuetext", name);
    position.textContent = `${name} · ${frame + 1} / ${episode.frames.length}`;
    const images = await episodeImages(episode);
    // Another frame may have been selected during decompression.
    if (shown.episode !== episode || !player.isAt(frame)) return;
    image.src = imageUrl(images[index]);
    image.alt = `${episode.task ?? "episode"}, ${name}`;
  }

  function choose(episode) {
    player.stop();
    shown.episode = episode;
    for (const item of list.children)
      item.firstChild.setAttribute("aria-current", String(item.episode === episode));
    const [result] = RESULTS[episode.solved];
    const details = [
      COMPARING ? DATA.runs[episode.run].label : null,
      ...episodeFacts(episode),
      episode.similarity !== null ? `similarity ${percent(episode.similarity)}` : null,
    ];
    caption.replaceChildren(
      el("strong", {}, episode.task ?? "Episode"),
      el("span", { class: `pill ${result}` }, result === "unknown" ? "unknown result" : result),
      el("span", { class: "muted" }, details.filter((part) => part).join(" · ")),
    );
    const hasImages = episode.frames.length > 0;
    for (const control of stage.querySelectorAll(".transport > *"))
      control.disabled = episode.frames.length < 2;
    picture.replaceChildren(
      hasImages ? image : el("span", { class: "muted" }, "This episode has no images."),
    );
    slider.max = Math.max(episode.frames.length - 1, 0);
    if (hasImages) player.go(0);
    else position.textContent = "";
  }

  function drawList() {
    shown.episodes = DATA.episodes.filter(
      (episode) =>
        (shown.result === "all" || RESULTS[episode.solved][0] === shown.result) &&
        (shown.run === "all" || episode.run === shown.run),
    );
    list.replaceChildren(
      ...shown.episodes.map((episode) => {
        const [result, mark] = RESULTS[episode.solved];
        const item = el(
          "li",
          {},
          el(
            "button",
            { type: "button", click: () => choose(episode) },
            el("span", { class: `mark ${result}`, title: result }, mark),
            el(
              "span",
              { class: "task" },
              COMPARING ? swatch(episode.run) : null,
              COMPARING ? " " : null,
              episode.task ?? "Episode",
            ),
            el("span", { class: "facts" }, episodeFacts(episode).join(" · ")),
          ),
        );
        item.episode = episode;
        return item;
      }),
    );
    if (!shown.episodes.length) list.append(el("li", { class: "muted" }, el("span", {}, "No episodes.")));
    else choose(shown.episodes.includes(shown.episode) ? shown.episode : shown.episodes[0]);
  }

  function onKeyDown(event) {
    const offset = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const listOffset = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    // The slider handles its own keys.
    if (event.target === slider || event.altKey || event.ctrlKey || event.metaKey) return;
    if (offset && shown.episode.frames.length) {
      event.preventDefault();
      player.step(offset);
    }
    if (listOffset && list.contains(event.target)) {
      event.preventDefault();
      const item = event.target.closest("li")[listOffset < 0 ? "previousElementSibling" : "nextElementSibling"];
      if (item) {
        item.firstChild.focus();
        choose(item.episode);
      }
    }
    if (event.key === " " && event.target === picture && shown.episode.frames.length > 1) {
      event.preventDefault();
      player.play.click();
    }
  }

  const count = (result) => DATA.episodes.filter((episode) => RESULTS[episode.solved][0] === result).length;
  const filters = el(
    "div",
    { class: "filters" },
    segments(
      "Result",
      [
        ["all", `All ${DATA.episodes.length}`],
        ["solved", `Solved ${count("solved")}`],
        ["unsolved", `Unsolved ${count("unsolved")}`],
      ],
      "all",
      (result) => {
        shown.result = result;
        drawList();
      },
    ),
    COMPARING
      ? segments(
          "Run",
          [["all", "All runs"], ...DATA.runs.map((run, index) => [index, run.label])],
          "all",
          (run) => {
            shown.run = run;
            drawList();
          },
        )
      : null,
  );
  drawList();
  return el(
    "div",
    { class: "viewer card", id: "viewer", keydown: onKeyDown },
    el("div", { class: "reel" }, filters, list),
    stage,
  );
}
