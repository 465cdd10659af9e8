// Filters, the grid of thumbnails, the theme and the keyboard.
const BATCH = 60;
const PERCENTS = Math.max(1, Math.ceil(100 * MOST_ROAD));
let found = SCENES, placed = 0;

const ORDERS = {
  store: (a, b) => a.index - b.index,
  id: (a, b) => a.id.localeCompare(b.id, "en", { numeric: true }),
  most: (a, b) => b.road - a.road || a.index - b.index,
  least: (a, b) => a.road - b.road || a.index - b.index,
  valid: (a, b) => a.valid - b.valid || a.index - b.index,
};

function fits(scene) {
  const { split, status, road, q } = STATE, percent = 100 * scene.road;
  return (
    (!split.length || split.includes(scene.split)) && (!status.length || status.includes(scene.status)) &&
    (!road || (percent >= road[0] && percent <= road[1])) && q.toLowerCase().split(/\s+/).every((word) => scene.key.includes(word))
  );
}

const LOADER = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    LOADER.unobserve(entry.target);
    for (const picture of entry.target.querySelectorAll("img")) picture.src = source(picture.className, picture.dataset.index);
  }
}, { rootMargin: "400px" });

function card(scene) {
  const element = make("button", "card"), box = make("div", "frame"), name = make("div", "name");
  element.type = "button";
  element.title = scene.id;
  element.dataset.scene = scene.id;
  box.style.aspectRatio = String(1 / Math.min(1.6, Math.max(0.5, scene.aspect)));
  if (scene.built) {
    for (const kind of ["thumb", "roads"]) {
      const picture = make("img", kind);
      picture.alt = "";
      picture.decoding = "async";
      picture.dataset.index = scene.index;
      box.append(picture);
    }
    LOADER.observe(box);
  } else {
    box.classList.add("bare");
    box.append(make("span", "why", scene.reason));
  }
  const label = make("span"), text = make("bdi", "", scene.id);
  label.append(text); // cut at its beginning, which many ids share
  name.append(label, badge(scene.split, tone(scene.split)));
  const fine = scene.status === "ok", partly = scene.valid < 0.995 ? ` · ${number(100 * scene.valid)} % imagery` : "";
  element.append(box, name, make("div", fine ? "figures" : "figures bad", fine ? `${share(scene.road)} ${DATA.words.share}${partly}` : scene.status));
  element.addEventListener("click", () => openScene(scene, found));
  return element;
}

function placeMore() {
  const next = found.slice(placed, placed + BATCH);
  placed += next.length;
  $("grid").append(...next.map(card));
}

function apply() {
  writeState();
  found = SCENES.filter(fits).sort(ORDERS[STATE.sort]);
  MAP.shown = new Set(found.map((scene) => scene.index));
  placed = 0;
  $("grid").replaceChildren();
  $("grid").classList.toggle("show-roads", STATE.roads === "1");
  placeMore();
  const all = found.length === SCENES.length;
  $("count").textContent = all ? `${number(SCENES.length)} scenes` : `${number(found.length)} of ${number(SCENES.length)} scenes`;
  $("reset").hidden = all && STATE.sort === "store";
  $("empty").hidden = found.length > 0;
  showFilters();
  noteMap();
  drawMap();
}

const CHIPS = [];
function chips(name, values) {
  for (const value of values) {
    const count = SCENES.filter((scene) => scene[name] === value).length;
    if (!count) continue;
    const button = make("button", "chip", `${value} `);
    button.type = "button";
    button.append(make("b", "", number(count)));
    if (name === "split") button.style.setProperty("--tone", tone(value));
    button.addEventListener("click", () => {
      const chosen = STATE[name];
      STATE[name] = chosen.includes(value) ? chosen.filter((one) => one !== value) : [...chosen, value];
      apply();
    });
    CHIPS.push([button, name, value]);
    $(name).append(button);
  }
}

function showFilters() {
  for (const [button, name, value] of CHIPS) button.setAttribute("aria-pressed", STATE[name].includes(value));
  const [low, high] = STATE.road || [0, PERCENTS];
  $("road-low").value = low;
  $("road-high").value = high;
  $("fill").style.left = `${(100 * low) / PERCENTS}%`;
  $("fill").style.right = `${100 - (100 * Math.min(high, PERCENTS)) / PERCENTS}%`;
  $("road-text").textContent = STATE.road ? `${low}–${high} %` : "any share";
  if ($("search").value !== STATE.q) $("search").value = STATE.q;
  $("sort").value = STATE.sort;
  $("roads").checked = STATE.roads === "1";
  [...$("spark").children].forEach((bar, i, bars) => {
    const from = (PERCENTS * i) / bars.length, to = (PERCENTS * (i + 1)) / bars.length;
    bar.setAttribute("class", to > low && from < high ? "in" : "");
  });
}

function startRoadRange() {
  const bins = new Array(28).fill(0);
  for (const scene of SCENES) bins[Math.min(27, Math.floor((28 * 100 * scene.road) / PERCENTS))] += 1;
  const most = Math.max(...bins);
  $("spark").setAttribute("viewBox", "0 0 28 10");
  bins.forEach((count, i) => $("spark").append(draw("rect", { x: i + 0.1, width: 0.8, y: 10 - (10 * count) / most, height: (10 * count) / most })));
  for (const id of ["road-low", "road-high"]) {
    $(id).max = PERCENTS;
    $(id).addEventListener("input", () => {
      const ends = [Number($("road-low").value), Number($("road-high").value)].sort((a, b) => a - b);
      STATE.road = ends[0] === 0 && ends[1] === PERCENTS ? null : ends;
      apply();
    });
  }
}

function tell() {
  const facts = DATA.facts, [x, y] = facts.gsd_m;
  const bytes = facts.bytes < 1e9 ? `${number(facts.bytes / 1e6)} MB` : `${number(facts.bytes / 1e9, 1)} GB`;
  const used = DATA.splits.map((split) => [split, SCENES.filter((scene) => scene.split === split).length]).filter(([, count]) => count);
  $("summary").textContent = `${used.map(([split, count]) => `${number(count)} ${split}`).join(" · ")} · ${number(x, 2)} × ${number(y, 2)} m per pixel`;
  const tiles = [
    [number(SCENES.length), SCENES.length === 1 ? "scene" : "scenes"], [number(facts.tiles), `tiles of ${facts.tile} px`],
    [number(facts.km2, facts.km2 < 100 ? 1 : 0), "km² of imagery"], [SCENES.some((scene) => scene.status === "ok") ? share(facts.share) : "–", DATA.words.tile],
    [share(facts.valid_fraction), "of pixels with imagery"], [bytes, "on disk"],
  ];
  $("tiles").append(...tiles.map(([value, text]) => {
    const tile = make("div", "tile");
    tile.append(make("b", "", value), make("span", "", text));
    return tile;
  }));
  $("foot").textContent = `Shown: ${DATA.shown}. Values are 1–255, rescale ${facts.rescale}. Made by geoprep ${facts.version}. Keys: arrows next and previous, O overlay, 1–4 views, + − 0 zoom, / search.`;
}

function setTheme() {
  document.documentElement.dataset.theme = STATE.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

function typed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (!DIALOG.open) {
    if (event.key === "/" && event.target !== $("search")) { event.preventDefault(); $("search").focus(); }
    return;
  }
  const does = {
    ArrowLeft: () => stepScene(-1), ArrowRight: () => stepScene(1), ArrowUp: () => stepScene(-1), ArrowDown: () => stepScene(1),
    o: () => setMode(STATE.view === "overlay" ? "both" : "overlay"), "+": () => zoomScene(1.5), "-": () => zoomScene(1 / 1.5), 0: fitScene,
    1: () => setMode("both"), 2: () => setMode("overlay"), 3: () => setMode("image"), 4: () => setMode("mask"),
  }[event.key];
  if (!does || event.target === $("opacity")) return;
  event.preventDefault();
  does();
}

function follow() {
  readState();
  setTheme();
  apply();
  const scene = STATE.scene && SCENES.find((one) => one.id === STATE.scene);
  if (scene) openScene(scene, found);
  else if (DIALOG.open) closeScene();
}

function start() {
  readState();
  setTheme();
  tell();
  chips("split", DATA.splits);
  chips("status", DATA.statuses);
  startRoadRange();
  startMap((scene) => openScene(scene, found));
  startViewer();
  $("search").addEventListener("input", () => { STATE.q = $("search").value; apply(); });
  $("sort").addEventListener("change", () => { STATE.sort = $("sort").value; apply(); });
  $("roads").addEventListener("change", () => { STATE.roads = $("roads").checked ? "1" : ""; apply(); });
  $("reset").addEventListener("click", () => { Object.assign(STATE, { split: [], status: [], road: null, q: "", sort: "store" }); apply(); });
  $("theme").addEventListener("click", () => {
    STATE.theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    setTheme();
    apply();
  });
  new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && placeMore(), { rootMargin: "900px" }).observe($("more"));
  const resized = () => { layOut(); drawMap(); drawCharts(); fitScene(); };
  const observer = new ResizeObserver(resized);
  for (const element of [document.documentElement, $("stage")]) observer.observe(element);
  document.addEventListener("keydown", typed);
  addEventListener("hashchange", follow);
  layOut();
  drawCharts();
  follow();
}
start();
