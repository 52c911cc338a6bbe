// The page: what is chosen, its sections in order, and, while a run goes on, what the server tells of it.
const ui = { setting: 0, which: "reported" };
let all = JSON.parse(document.getElementById("contents").textContent);
let parts = [], holder = { now: null };

function part(id, title, lead, body, renew) {
  const node = h("section", { id, "aria-labelledby": `${id}-title` }, h("h2", { id: `${id}-title` }, title), lead ? h("p", { class: "lead" }, lead) : null, body);
  return { id, title, node, renew };
}

function wordsPart(setting) {
  const words = h("p", { class: "words" }), tiles = h("dl", { class: "tiles" });
  function renew() {
    const now = setting.now, best = now.experiments[now.headline], final = best.final[best.reported], alone = now.experiments[now.alone];
    const gains = best.gains[best.reported], count = (v) => gains.verdicts.filter((each) => each === v).length;
    words.textContent = now.words.join(" ");
    const tile = (label, value, more) => h("div", {}, h("dt", {}, label), h("dd", {}, value, more ? h("small", {}, more) : null));
    tiles.replaceChildren(...[
      tile(`${capital(judged.title)} together`, `${percent(final.mean, 1)} ${judged.unit}`, `${best.name}, ${best.reported}`),
      alone && alone !== best ? tile(`${capital(judged.title)} alone`, `${percent(alone.final[alone.reported].mean, 1)} ${judged.unit}`, alone.name) : null,
      gains ? tile("Sites that gain", `${count("gains")} of ${gains.verdicts.length}`, `${count("loses")} lose, ${count("open")} too close to call`) : null,
      tile("Worst tenth of sites", `${percent(final.worst, 1)} ${judged.unit}`, `their mean ${judged.title}`),
      tile("Traffic per site", size((best.cost.bytes_up + best.cost.bytes_down) / now.sites.length), `${best.rounds} rounds, up and down`),
    ].filter(known));
  }
  return part("words", "In short", null, [words, tiles], renew);
}

function heldPart(setting) {
  const classes = () => Math.max(0, ...setting.now.held.map((row) => row.length));
  const chart = picture((width) => {
    const { sites, held, drawn } = setting.now, k = classes(), left = width < 520 ? 92 : 150, row = 22, top = 24;
    const cell = Math.min(46, Math.max(16, (width - left - 96) / Math.max(1, k))), own = Math.max(width, left + 8 + cell * k + 90), height = top + row * drawn.length + 6;
    const most = Math.max(1, ...drawn.flatMap((i) => held[i])), parts = [];
    for (let c = 0; c < k; c++) parts.push(s("text", { x: left + 8 + cell * (c + 0.5), y: 14, "text-anchor": "middle", class: "soft" }, k > 20 && c % 2 ? "" : c));
    parts.push(s("text", { x: left, y: 14, "text-anchor": "end", class: "soft" }, "class"), s("text", { x: left + 16 + cell * k, y: 14, class: "soft" }, "train / test"));
    drawn.forEach((i, at) => {
      const y = top + row * (at + 0.5);
      if (at && sites[i].group !== sites[drawn[at - 1]].group) parts.push(s("path", { d: `M0 ${y - row / 2}H${left + 96 + cell * k}`, class: "grid" }));
      parts.push(s("text", { x: left, y: y + 4, "text-anchor": "end" }, clip(sites[i].name, width < 520 ? 12 : 21)),
        s("g", { class: `c${(sites[i].group ?? 1) % 8}` }, held[i].map((count, c) => (count ? s("circle", { cx: left + 8 + cell * (c + 0.5), cy: y, r: Math.max(0.8, Math.sqrt(count / most) * Math.min(row, cell) * 0.49), class: "dot faint" }, s("title", {}, `${sites[i].name}, class ${c}: ${count}`)) : null))),
        s("text", { x: left + 16 + cell * k, y: y + 4 }, `${sites[i].train} / ${sites[i].test}`));
    });
    return { label: `Training samples of ${k} classes at ${drawn.length} sites: the area of a dot is the number of samples, at most ${most}.`, height, width: own, parts };
  });
  const listed = numbers("What each site holds", () => h("div", { class: "tall", tabindex: 0 }, table("Training samples of each class", [
    { title: "site", text: true, value: (i) => setting.now.sites[i].name }, { title: "group", value: (i) => setting.now.sites[i].group, show: (i) => setting.now.sites[i].group ?? "–" },
    { title: "train", value: (i) => setting.now.sites[i].train }, { title: "test", value: (i) => setting.now.sites[i].test },
    ...[...Array(classes()).keys()].map((c) => ({ title: `class ${c}`, value: (i) => setting.now.held[i][c] }))], setting.now.sites.map((_, i) => i), { sortable: true })));
  const { drawn, sites } = setting.now;
  const some = drawn.length < sites.length ? ` ${drawn.length} of ${sites.length} sites are drawn; the table has all.` : "";
  return part("held", "What each site holds", `Training samples by class; the area of a dot is their number, its colour the site's group.${some}`,
    [h("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": "What each site holds" }, chart), listed], () => { chart.draw(); listed.renew(); });
}

function costPart(setting) {
  const body = h("div");
  const meter = (value, most, second) => { const bar = h("span", { class: `meter ${second ? "second" : ""}`, "aria-hidden": "true" }); bar.style.width = `${Math.round((84 * value) / (most || 1))}px`; return h("span", { class: "track" }, bar); };
  function renew() {
    const es = setting.now.experiments, most = (key) => Math.max(...es.map((e) => e.cost[key]));
    const promised = es.some((e) => e.cost.privacy);
    body.replaceChildren(table("A whole run, all sites together; mean over seeds", [
      { title: "method", text: true, value: (e) => e.name },
      { title: "sent by sites", value: (e) => e.cost.bytes_up, show: (e) => [size(e.cost.bytes_up), meter(e.cost.bytes_up, most("bytes_up"))] },
      { title: "sent to sites", value: (e) => e.cost.bytes_down, show: (e) => [size(e.cost.bytes_down), meter(e.cost.bytes_down, most("bytes_down"), true)] },
      { title: "time of the rounds", value: (e) => e.cost.seconds, show: (e) => [duration(e.cost.seconds), meter(e.cost.seconds, most("seconds"))] },
      { title: "per round", value: (e) => e.cost.seconds / e.rounds, show: (e) => duration(e.cost.seconds / Math.max(1, e.rounds)) },
      ...(promised ? [{ title: "privacy", text: true, long: true, value: (e) => e.cost.privacy || "no guarantee" }] : []),
    ], es, { sortable: true }));
  }
  return part("cost", "What it cost", "Seconds depend on the machine and on what else it did; bytes do not.", [body], renew);
}

function failuresPart(setting) {
  const body = h("div");
  function renew() {
    const rows = setting.now.experiments.flatMap((e) => e.failures.map((f) => ({ ...f, name: e.name })));
    body.replaceChildren(rows.length ? table(`${rows.length} times a site was asked and did not answer`, [
      { title: "site", text: true, value: (f) => f.site }, { title: "round", value: (f) => f.round }, { title: "cause", text: true, value: (f) => f.cause },
      { title: "reason", text: true, long: true, value: (f) => f.reason }, { title: "run", text: true, value: (f) => `${f.name}, seed ${f.seed}` }], rows, { sortable: true })
      : h("p", {}, "No site failed: everybody who was asked answered, and every answer could be used."));
  }
  return part("failures", "Failures", null, [body], renew);
}

function originPart(setting) {
  const body = h("div");
  const copy = (text) => {
    const button = h("button", { type: "button", onclick: async () => {
      try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; } catch { button.textContent = "Select the text and copy it"; }
    } }, "Copy");
    return button;
  };
  function runDetails(e, run) {
    const facts = { folder: run.folder, started: run.started || "unknown", command: run.command, commit: run.commit,
      versions: Object.entries(run.versions).map(([name, version]) => `${name} ${version}`).join(", "), machine: run.machine, kernels: run.kernels,
      sessions: run.sessions > 1 ? `${run.sessions} (it was interrupted and continued)` : run.sessions, "data digest": run.data || "not recorded", "SHA-256 of metrics.csv": run.metrics };
    const again = `fedpac run config.toml --out again     # with the config below, at commit ${run.commit}\nsha256sum again/metrics.csv            # ${run.metrics}`;
    return h("details", {}, h("summary", {}, `${e.name}, seed ${run.seed}`),
      h("dl", { class: "facts" }, Object.entries(facts).map(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))])),
      h("h3", {}, "The same numbers again"), h("pre", { tabindex: 0 }, again), copy(again), h("h3", {}, "config.toml"), h("pre", { tabindex: 0 }, run.config), copy(run.config));
  }
  const renew = () => { if (!body.children.length) body.replaceChildren(...setting.now.experiments.flatMap((e) => e.runs.map((run) => runDetails(e, run)))); };
  return part("origin", "Where the numbers come from", "A run is a pure function of its config: the same commit, versions and data give the same metrics.csv, byte for byte, with any number of workers.", [body], renew);
}

function glossaryPart() {
  const terms = {
    ...(judged.factor > 1 ? {} : { "R²": "The share of the variance of a site's held-out targets that the model explains: 1 is perfect, 0 is as good as their mean, and less than 0 is worse." }),
    received: "The accuracy of the model that a site gets from the server, before it trains any further.",
    personal: "The accuracy of the same model after the site has trained it on its own data.",
    "as reported": "Whichever of the two the method's own paper reports; the methods differ in it.",
    "Local-only": "Each site trains on its own data and never exchanges anything.",
    "95 % interval": "Where the true difference is likely to be, given how many samples were held out (Newcombe's interval). Both models are scored on the same samples, which makes it wider than necessary, not narrower.",
    "worst tenth": "The mean over the tenth of the sites with the lowest accuracy.",
    ...(all.settings[ui.setting].experiments.some((e) => e.reliability.received || e.reliability.personal) ? {
      confidence: "The probability that a model gives to the class it predicts.",
      "calibration error": `The difference between confidence and accuracy, averaged over ${BINS} bins of the confidence by their samples (expected calibration error).`,
    } : {}),
    round: "The server sends models, sites train and answer, the server combines the answers.",
    seed: "Names every random choice of a run. Several seeds show how much of a result is luck.",
  };
  return part("glossary", "Words used here", null, [h("dl", { class: "facts" }, Object.entries(terms).map(([term, text]) => [h("dt", {}, term), h("dd", {}, text)]))], () => {});
}

// --- the whole page ---

const main = document.getElementById("main"), nav = document.getElementById("nav"), bar = document.getElementById("bar");
const settingChoice = choice("Data", [], "0", (value) => { ui.setting = Number(value); build(); }, "setting");
const whichChoice = choice("Accuracy", [["reported", "as each paper reports it"], ["received", "received"], ["personal", "personal"]], "reported",
  (value) => { ui.which = value; renewAll(); }, "which");
const theme = h("button", { type: "button", id: "theme", class: "push", onclick: () => {
  const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  theme.textContent = dark ? "Dark" : "Light";
} }, matchMedia("(prefers-color-scheme: dark)").matches ? "Light" : "Dark");
const print = h("button", { type: "button", id: "print", onclick: () => window.print() }, "Print");

const signature = (setting) => JSON.stringify([setting.title, setting.experiments.map((e) => [e.name, e.runs.length, e.weights.length > 0]), setting.sites.length]);
let built = "";

function build() {
  const now = all.settings[ui.setting];
  pictures.clear();
  document.getElementById("subtitle").textContent = now ? now.title : "No round has been scored yet.";
  if (!now) return;
  built = signature(now);
  judged = now.measure;
  holder = { now };
  parts = [wordsPart, gainsPart, overviewPart, curvesPart, spreadPart, calibrationPart, weightsPart, heldPart, costPart, failuresPart, originPart, glossaryPart].map((make) => make(holder)).filter(known);
  main.replaceChildren(...parts.map((each) => each.node));
  nav.replaceChildren(h("ul", {}, parts.map((each) => h("li", {}, h("a", { href: `#${each.id}` }, each.title)))));
  renewAll();
}
const renewAll = () => parts.forEach((each) => each.renew());

function show(contents) {
  all = contents;
  const now = all.settings[ui.setting];
  settingChoice.offer(all.settings.map((each, k) => [k, each.title]), ui.setting);
  settingChoice.classList.toggle("hidden", all.settings.length < 2);
  if (now && signature(now) === built) { holder.now = now; renewAll(); } else build();
}

bar.append(settingChoice, whichChoice, theme, print);
new ResizeObserver(() => pictures.forEach((each) => each.resized())).observe(main);
addEventListener("beforeprint", () => {
  document.documentElement.classList.add("printing");  // as wide as paper, so that pictures are drawn for it
  document.querySelectorAll("#gains details").forEach((each) => { each.open = true; each.renew(); });
  pictures.forEach((each) => each.draw());
});
addEventListener("afterprint", () => {
  document.documentElement.classList.remove("printing");
  pictures.forEach((each) => each.draw());
});
show(all);
