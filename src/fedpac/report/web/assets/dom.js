// Small helpers. Text from run folders only ever becomes a text node or an attribute of ours, never markup.
const SVG = "http://www.w3.org/2000/svg";

function make(space, tag, attributes, children) {
  const node = space ? document.createElementNS(space, tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(2).filter((child) => child !== null && child !== undefined));
  return node;
}
const h = (tag, attributes, ...children) => make(null, tag, attributes, children);
const s = (tag, attributes, ...children) => make(SVG, tag, attributes, children);

const known = (value) => value !== null && value !== undefined;
let judged = { name: "accuracy", title: "accuracy", label: "accuracy (%)", unit: "%", factor: 100, decimals: 0, least: 0 };  // what models are judged by
const fixed = (value, digits = 2) => value.toFixed(digits + judged.decimals);
const percent = (share, digits = 2) => (known(share) ? fixed(judged.factor * share, digits) : "–");
const points = (value, digits = 1) => (known(value) ? (value < 0 ? "−" : "+") + fixed(Math.abs(value), digits) : "–");
const capital = (text) => text[0].toUpperCase() + text.slice(1);
const clip = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);

function size(bytes) {
  for (const [unit, factor] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (bytes >= factor) return `${Number((bytes / factor).toPrecision(3))} ${unit}`;
  }
  return `${Math.round(bytes)} bytes`;
}

function duration(seconds) {
  if (!known(seconds)) return "–";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 120 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
}

function bytesOf(text) {
  const raw = atob(text);
  return Uint8Array.from(raw, (character) => character.charCodeAt(0));
}

// A select whose options are [value, text]; keeps its value if it is still among new options.
function choice(label, options, value, changed, id) {
  const select = h("select", { id, onchange: () => changed(select.value) });
  const node = h("label", {}, label, " ", select);
  node.offer = (offered, wanted) => {
    const before = wanted ?? select.value;
    select.replaceChildren(...offered.map(([key, text]) => h("option", { value: key }, clip(String(text), 60))));
    if (offered.some(([key]) => String(key) === String(before))) select.value = before;
    return select.value;
  };
  Object.defineProperty(node, "value", { get: () => select.value, set: (to) => { select.value = to; } });
  node.offer(options, value);
  return node;
}

// A table; columns are {title, text, value(row), show(row), first}. Headings sort.
function table(caption, columns, rows, options = {}) {
  const body = h("tbody");
  let by = options.sort ?? null, down = true;
  const heads = columns.map((column, at) => {
    const sort = () => { down = by === at ? !down : !column.text; by = at; fill(); };
    return h("th", { scope: "col", class: column.text ? "text" : null },
      options.sortable ? h("button", { type: "button", onclick: sort }, column.title) : column.title);
  });
  function fill() {
    const sorted = by === null ? rows : [...rows].sort((a, b) => {
      const [x, y] = [columns[by].value(a), columns[by].value(b)];
      const order = typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : (x ?? -1e99) - (y ?? -1e99);
      return down ? -order : order;
    });
    heads.forEach((head, at) => {
      if (at === by) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    body.replaceChildren(...sorted.map((row) => h("tr", {}, columns.map((column, at) => {
      const shown = (column.show ?? column.value)(row);
      const look = (column.text ? "text" : "") + (column.long ? " long" : "");
      return at === 0 ? h("th", { scope: "row", class: "text" }, shown) : h("td", { class: look || null }, shown);
    }))));
  }
  fill();
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, heads)), body));
}

// The same numbers as text, for those who do not see the picture. Made when it is opened.
function numbers(caption, build) {
  const details = h("details", {}, h("summary", {}, `${caption} as a table`));
  const fill = () => { while (details.children.length > 1) details.lastChild.remove(); details.append(build()); };
  details.addEventListener("toggle", () => { if (details.open) fill(); });
  details.renew = () => { if (details.open) fill(); };
  details.fill = fill;
  return details;
}

// A picture that is drawn again when its room changes. draw(width) gives {label, height, parts}.
const pictures = new Set();
function picture(draw, attributes = {}) {
  const svg = s("svg", { role: "img", ...attributes });
  const holder = h("div", { class: "picture" }, svg);
  let drawn = 0;
  holder.draw = () => {
    const width = Math.floor(holder.clientWidth);
    if (width < 10) return;
    drawn = width;
    const { label, height, parts, width: own } = draw(width);
    svg.setAttribute("viewBox", `0 0 ${own ?? width} ${height}`);
    svg.setAttribute("width", own ?? width);
    svg.setAttribute("height", height);
    svg.setAttribute("aria-label", label);
    svg.replaceChildren(...parts.flat(3).filter(known));
  };
  holder.resized = () => { if (Math.floor(holder.clientWidth) !== drawn) holder.draw(); };
  holder.svg = svg;
  pictures.add(holder);
  return holder;
}

function scale(low, high, from, to) {
  const span = high - low || 1;
  const at = (value) => from + ((value - low) / span) * (to - from);
  at.back = (place) => low + ((place - from) / (to - from || 1)) * span;
  return at;
}

function ticks(low, high, about) {
  const rough = (high - low) / Math.max(1, about), power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((each) => each >= rough) ?? rough;
  const found = [];
  for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-9; value += step) found.push(Number(value.toPrecision(10)));
  return found;
}

const wholeTicks = (low, high, about) => [...new Set(ticks(low, high, about).filter(Number.isInteger))];

// Shapes tell lines apart without colour: circle, square, triangle, diamond, triangle down, plus, cross.
function marker(kind, x, y, r, extra = "") {
  const p = (text) => s("path", { d: text, class: `dot ${extra}` });
  const k = r * 1.15;
  return [
    () => s("circle", { cx: x, cy: y, r, class: `dot ${extra}` }),
    () => s("rect", { x: x - r * 0.9, y: y - r * 0.9, width: 1.8 * r, height: 1.8 * r, class: `dot ${extra}` }),
    () => p(`M${x} ${y - k}L${x + k} ${y + r * 0.85}H${x - k}Z`),
    () => p(`M${x} ${y - k}L${x + k} ${y}L${x} ${y + k}L${x - k} ${y}Z`),
    () => p(`M${x} ${y + k}L${x + k} ${y - r * 0.85}H${x - k}Z`),
    () => p(`M${x - r / 2.6} ${y - k}h${r / 1.3}v${k - r / 2.6}h${k - r / 2.6}v${r / 1.3}h${r / 2.6 - k}v${k - r / 2.6}h${-r / 1.3}v${r / 2.6 - k}h${r / 2.6 - k}v${-r / 1.3}h${k - r / 2.6}Z`),
    () => p(`M${x - k} ${y - k * 0.55}l${k * 0.45} ${-k * 0.45}L${x} ${y - k * 0.45}l${k * 0.55} ${-k * 0.55}l${k * 0.45} ${k * 0.45}L${x + k * 0.45} ${y}l${k * 0.55} ${k * 0.55}l${-k * 0.45} ${k * 0.45}L${x} ${y + k * 0.45}l${-k * 0.55} ${k * 0.55}l${-k * 0.45} ${-k * 0.45}L${x - k * 0.45} ${y}Z`),
  ][kind % 7]();
}

const swatch = (experiment, dashed) => s("svg", { width: 30, height: 14, class: `swatch c${experiment.colour}`, "aria-hidden": "true" },
  s("path", { d: "M1 7H29", class: `line ${dashed ? "personal" : ""}` }), marker(experiment.marker, 15, 7, 4.5));

const VERDICTS = { gains: ["gains", 2], loses: ["loses", 4], open: ["too close to call", 0] };
const verdictMark = (verdict) => s("svg", { width: 14, height: 14, class: `swatch ${verdict}`, "aria-hidden": "true" },
  marker(VERDICTS[verdict][1], 7, 7, 5));
