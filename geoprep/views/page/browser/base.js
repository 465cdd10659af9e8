// What all parts share: the data, small helpers, and the state, which is the address after the #.
const DATA = JSON.parse(document.getElementById("data").textContent);
const SCENES = DATA.scenes;
const $ = (id) => document.getElementById(id);
const number = (value, digits = 0) =>
  value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const share = (value) => `${number(100 * value, 1)} %`;

SCENES.forEach((scene, index) => Object.assign(scene, { index, key: scene.id.toLowerCase() }));

// Texts come from file names and labels: they are only ever set as text, never as markup.
function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

function draw(tag, attributes, text = "") {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== "") element.textContent = text;
  return element;
}

function source(kind, index) {
  const block = $(`${kind}-${index}`);
  return `data:${block.type};base64,${block.textContent}`;
}

const tone = (name) => `var(--${name})`;
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function badge(text, colour) {
  const element = make("span", "badge", text);
  element.style.setProperty("--tone", colour);
  return element;
}

function keyed(parent, entries) {
  parent.replaceChildren(
    ...entries.map(([colour, text]) => {
      const entry = make("span");
      const box = make("i");
      if (colour === "nodata") box.className = "nodata";
      else box.style.background = colour;
      entry.append(box, text);
      return entry;
    }),
  );
}

// One of several: buttons of which one is pressed.
function segments(parent, names, choose) {
  const buttons = names.map((name) => {
    const button = make("button", "", name);
    button.type = "button";
    button.addEventListener("click", () => choose(name));
    return button;
  });
  parent.append(...buttons);
  return (chosen) =>
    buttons.forEach((button) => button.setAttribute("aria-pressed", button.textContent === chosen));
}

const STATE = { split: [], status: [], road: null, q: "", sort: "store", scene: "", view: "both", roads: "", theme: "" };

function readState() {
  const given = new URLSearchParams(location.hash.slice(1));
  const listed = (name, known) => (given.get(name) || "").split(",").filter((one) => known.includes(one));
  const road = /^([\d.]+)-([\d.]+)$/.exec(given.get("road") || "");
  STATE.split = listed("split", DATA.splits);
  STATE.status = listed("status", DATA.statuses);
  STATE.road = road && [Number(road[1]), Number(road[2])];
  STATE.q = given.get("q") || "";
  for (const [name, known] of [
    ["sort", ["id", "most", "least", "valid"]], ["view", ["overlay", "image", "mask"]],
    ["theme", ["light", "dark"]], ["roads", ["1"]],
  ]) STATE[name] = known.includes(given.get(name)) ? given.get(name) : { sort: "store", view: "both" }[name] || "";
  STATE.scene = given.get("scene") || "";
}

function writeState() {
  const kept = new URLSearchParams();
  for (const [name, value] of Object.entries(STATE)) {
    const text = name === "road" ? value && value.join("-") : String(value);
    if (text && text !== "store" && text !== "both") kept.set(name, text);
  }
  // As text, so that pages opened from a file, which some browsers let no history be made of, work.
  const hash = `#${kept}`;
  if (hash !== (location.hash || "#")) {
    try { history.replaceState(null, "", hash); } catch { location.hash = hash; }
  }
}
