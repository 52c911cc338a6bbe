// Who gains, accuracy over rounds, and how accuracy is spread over sites.
const shownSplit = (experiment) => (ui.which !== "reported" && experiment.final[ui.which] ? ui.which : experiment.reported);
const splitNote = (experiment) => `${experiment.name} (${shownSplit(experiment)})`;

function overviewPart(setting) {
  const holder = h("div");
  const swatched = (e) => [swatch(e, shownSplit(e) === "personal"), e.name];
  const cell = (which) => (e) => {
    if (!e.final[which]) return "not measured";
    const { mean, spread } = e.final[which];
    return [`${percent(mean)} ± ${percent(spread)}`, e.reported === which ? " ◂" : ""];
  };
  const counted = (e) => e.gains[shownSplit(e)];
  const score = (e) => { const g = counted(e); return g ? g.verdicts.filter((v) => v === "gains").length - g.verdicts.filter((v) => v === "loses").length : null; };
  function draw(now) {
    const several = now.experiments.some((e) => e.seeds.length > 1);
    const columns = [
      { title: "method", text: true, value: (e) => e.name, show: swatched },
      { title: `received ${judged.unit}`, value: (e) => e.final.received?.mean, show: cell("received") },
      { title: `personal ${judged.unit}`, value: (e) => e.final.personal?.mean, show: cell("personal") },
      { title: `worst tenth ${judged.unit}`, value: (e) => e.final[shownSplit(e)].worst, show: (e) => percent(e.final[shownSplit(e)].worst, 1) },
      ...(known(now.alone) ? [{ title: "gain / lose / too close", value: score, show: (e) => {
        const g = counted(e);
        return g ? ["gains", "loses", "open"].map((v) => g.verdicts.filter((each) => each === v).length).join(" / ") : "–";
      } }] : []),
      { title: "seeds", value: (e) => e.seeds.length, show: (e) => e.seeds.join(", ") },
      { title: "rounds", value: (e) => e.rounds, show: (e) => (e.rounds < e.wanted ? `${e.rounds} of ${e.wanted}` : e.rounds) },
    ];
    const spread = several ? "over seeds, or over sites where there is one seed" : "over sites";
    const caption = `Final test ${judged.title}, mean over sites ± standard deviation ${spread}. ◂ is the one that the method's paper reports.`;
    const ranked = [...now.experiments].sort((a, b) => (b.final[shownSplit(b)].mean ?? 0) - (a.final[shownSplit(a)].mean ?? 0));
    holder.replaceChildren(table(caption, columns, ranked, { sortable: true }));
  }
  return part("methods", "The methods side by side", "Best first; click a heading to sort. Received: the model as it comes from the server. Personal: after local training.", [holder], () => draw(setting.now));
}

// --- site by site against Local-only ---

function gainsPart(setting) {
  const MANY = 60;
  const compared = () => setting.now.experiments.map((e, at) => [at, e]).filter(([, e]) => e.gains.received || e.gains.personal);
  if (!compared().length && judged.factor === 1) return part("gains", "Who gains and who loses", `A site has one ${judged.title}, which does not tell how sure a difference is: every site's is in the table below, with and without the others.`, [], () => {});
  if (!compared().length) {
    const why = known(setting.now.alone) ? "No run shares a seed with Local-only." : "There is no Local-only run on this page.";
    const first = setting.now.experiments[0].runs[0].folder;
    return part("gains", "Who gains and who loses", `${why} To compare, run the same data without collaboration and add its folder:`,
      [h("pre", { tabindex: 0 }, `fedpac run ${first}/config.toml --method local --out runs/local`)], () => {});
  }
  const start = compared().some(([at]) => at === setting.now.headline) ? setting.now.headline : compared()[0][0];
  const method = choice("Method", compared().map(([at, e]) => [at, e.name]), start, redraw, "gains-method");
  const order = choice("Order", [["gain", "by gain"], ["site", "by site"], ["group", "by group"]], "gain", redraw, "gains-order");
  const told = h("p", { class: "readout", role: "status" });
  const chosen = () => { const e = setting.now.experiments[method.value]; return [e, e.gains[shownSplit(e)]]; };
  function ordered(gains) {
    const sites = setting.now.sites, places = gains.difference.map((_, i) => i).filter((i) => known(gains.difference[i]));
    if (order.value === "gain") places.sort((a, b) => gains.difference[b] - gains.difference[a]);
    if (order.value === "group") places.sort((a, b) => (sites[a].group ?? 0) - (sites[b].group ?? 0) || a - b);
    return places;
  }
  const tell = (gains, i) => `${setting.now.sites[i].name}: ${points(gains.difference[i])} points (95 % interval ${points(gains.low[i])} to ${points(gains.high[i])}), ${VERDICTS[gains.verdicts[i]][0]}`;
  const chart = picture((width) => {
    const [e, gains] = chosen();
    const count = (v) => gains.verdicts.filter((each) => each === v).length;
    const label = `${splitNote(e)} against Local-only: ${count("gains")} sites gain, ${count("loses")} lose, ${count("open")} are too close to call. The numbers are in the table below.`;
    const low = Math.min(0, ...gains.low.filter(known)), high = Math.max(0, ...gains.high.filter(known)), places = ordered(gains);
    return { label, ...(places.length > MANY ? caterpillar : rows)(width, gains, places, low, high) };
  });
  function rows(width, gains, places, low, high) {
    const left = width < 520 ? 92 : 150, row = 21, top = 6, height = top + row * places.length + 40;
    const x = scale(low, high, left + 8, width - 50), parts = [], longest = width < 520 ? 12 : 21;
    for (const t of ticks(low, high, width / 110)) parts.push(
      s("path", { d: `M${x(t)} ${top}V${height - 36}`, class: t === 0 ? "axis" : "grid" }),
      s("text", { x: x(t), y: height - 20, "text-anchor": "middle", class: "soft" }, t > 0 ? `+${t}` : `${t}`.replace("-", "−")));
    places.forEach((i, at) => {
      const y = top + row * (at + 0.5), verdict = gains.verdicts[i];
      parts.push(s("g", { class: verdict },
        s("title", {}, tell(gains, i)),
        s("text", { x: left, y: y + 4, "text-anchor": "end" }, clip(setting.now.sites[i].name, longest)),
        s("path", { d: `M${x(gains.low[i])} ${y}H${x(gains.high[i])}`, class: "whisker" }),
        marker(VERDICTS[verdict][1], x(gains.difference[i]), y, 5),
        s("text", { x: width - 2, y: y + 4, "text-anchor": "end" }, points(gains.difference[i]))));
    });
    parts.push(s("text", { x: x(0), y: height - 3, "text-anchor": x(0) < width / 3 ? "start" : "middle", class: "soft" }, "points of accuracy against Local-only"));
    return { height, parts };
  }
  function caterpillar(width, gains, places, low, high) {  // too many sites for a row each
    const height = 300, x = scale(0, places.length - 1, 44, width - 8), y = scale(low, high, height - 26, 8), parts = [];
    for (const t of ticks(low, high, 6)) parts.push(
      s("path", { d: `M40 ${y(t)}H${width}`, class: t === 0 ? "axis" : "grid" }),
      s("text", { x: 36, y: y(t) + 4, "text-anchor": "end", class: "soft" }, t > 0 ? `+${t}` : `${t}`));
    for (const verdict of Object.keys(VERDICTS)) {
      const mine = places.map((i, at) => [i, at]).filter(([i]) => gains.verdicts[i] === verdict);
      parts.push(s("g", { class: verdict },
        s("path", { class: "whisker faint", d: mine.map(([i, at]) => `M${x(at)} ${y(gains.low[i])}V${y(gains.high[i])}`).join("") }),
        mine.map(([i, at]) => s("circle", { cx: x(at), cy: y(gains.difference[i]), r: 1.6, class: "dot" }))));
    }
    parts.push(s("text", { x: 44, y: height - 6, class: "soft" }, `${places.length} sites; vertical: points of accuracy against Local-only`));
    return { height, parts };
  }
  const key = h("ul", { class: "key" }, Object.entries(VERDICTS).map(([v, [text]]) => h("li", {}, verdictMark(v), text)));
  const listed = numbers("Gains and losses", () => {
    const [e, gains] = chosen(), sites = setting.now.sites, alone = setting.now.experiments[setting.now.alone];
    const own = e.final[shownSplit(e)].sites, other = alone.final[alone.reported].sites;
    return table(`${splitNote(e)} against Local-only, seeds ${gains.seeds.join(", ")}`, [
      { title: "site", text: true, value: (i) => sites[i].name },
      { title: "together %", value: (i) => own[i], show: (i) => percent(own[i], 1) },
      { title: "alone %", value: (i) => other[i], show: (i) => percent(other[i], 1) },
      { title: "difference", value: (i) => gains.difference[i], show: (i) => points(gains.difference[i]) },
      { title: "95 % interval", value: (i) => gains.low[i], show: (i) => `${points(gains.low[i])} to ${points(gains.high[i])}` },
      { title: "verdict", text: true, value: (i) => VERDICTS[gains.verdicts[i]][0] },
      { title: "held-out samples", value: (i) => sites[i].test },
    ], ordered(gains), { sortable: true });
  });
  function redraw() {
    const [, gains] = chosen();
    const missing = gains.difference.filter((d) => !known(d)).length;
    const by = (v) => gains.verdicts.filter((each) => each === v).length;
    told.textContent = `${by("gains")} gain, ${by("loses")} lose, ${by("open")} are too close to call. ` +
      `Each interval is right 95 times in 100, so among ${gains.verdicts.length} sites about ${Math.max(1, Math.round(gains.verdicts.length / 20))} may be marked by chance.${missing ? ` ${missing} ${missing === 1 ? "has" : "have"} no result.` : ""}`;
    chart.draw();
    listed.renew();
  }
  return part("gains", "Who gains and who loses", "Accuracy of a site's model minus what the site reaches alone (Local-only), on the site's own held-out samples. Bars are 95 % intervals from the number of held-out samples.",
    [h("div", { class: "controls" }, method, order), key, chart, told, listed], () => { method.offer(compared().map(([at, e]) => [at, e.name])); redraw(); });
}

// --- accuracy over rounds ---

function curvesPart(setting) {
  const off = new Set();
  const both = choice("Lines", [["one", "the accuracy chosen above"], ["both", "received and personal"]], "one", redraw, "curves-lines");
  const where = choice("Of", [["mean", "mean over sites"]], "mean", redraw, "curves-site");
  const zoom = h("input", { type: "checkbox", id: "curves-zoom", checked: true, onchange: redraw });
  const cursor = h("input", { type: "range", id: "curves-round", min: 0, max: 0, value: 0, oninput: redraw });
  const cursorText = h("output", { for: "curves-round" });
  const legend = h("ul", { class: "legend", tabindex: 0, "aria-label": "Methods drawn" });
  const splits = (e) => (both.value === "both" ? ["received", "personal"].filter((which) => e.curves[which]) : [shownSplit(e)]);
  const decoded = new Map();

  function lineOf(e, which) {  // [[round, percent, spread]]
    const curve = e.curves[which];
    if (where.value === "mean") return curve.rounds.map((t, k) => [t, curve.mean[k], curve.band ? curve.band[k] : null]).filter(([, y]) => known(y));
    if (!curve.of_sites) return [];
    let values = decoded.get(curve);
    if (!values) decoded.set(curve, values = new Uint16Array(bytesOf(curve.of_sites.values).buffer));
    const sites = setting.now.sites.length;
    return curve.of_sites.rounds.map((t, k) => [t, values[k * sites + Number(where.value)] * curve.of_sites.step + curve.of_sites.least, null]).filter(([, y]) => y <= judged.factor);
  }
  const lines = () => setting.now.experiments.flatMap((e, at) => (off.has(at) ? [] : splits(e).map((which) => ({ e, which, points: lineOf(e, which) }))));
  const last = () => Math.max(1, ...setting.now.experiments.map((e) => e.rounds));
  const at = (points, round) => { const before = points.filter(([t]) => t <= round); return before.length ? before[before.length - 1] : points[0]; };

  const chart = picture((width) => {
    const drawn = lines().filter((line) => line.points.length), height = width < 520 ? 300 : 400, left = 42, bottom = height - 40;
    const values = drawn.flatMap((line) => line.points.map(([, y]) => y));
    const later = drawn.flatMap((line) => line.points.slice(line.points.length > 8 ? 2 : 0).map(([, y]) => y)).sort((a, b) => a - b);
    const top = judged.factor, point = top / 100;
    let low = Math.min(...values, top), high = Math.max(...values, 0);
    if (zoom.checked && later.length) low = Math.max(low, later[Math.floor(later.length * 0.04)] - point);
    const room = Math.max(point, (high - low) * 0.04);
    low = zoom.checked ? Math.max(judged.least, low - room) : Math.min(0, low);
    high = zoom.checked ? Math.min(top, high + room) : top;
    const x = scale(0, last(), left, width - 12), y = scale(low, high, bottom, 10), parts = [];
    for (const t of ticks(low, high, 7)) parts.push(s("path", { d: `M${left} ${y(t)}H${width - 6}`, class: "grid" }), s("text", { x: left - 6, y: y(t) + 4, "text-anchor": "end", class: "soft" }, t));
    for (const t of wholeTicks(0, last(), width / 90)) parts.push(s("text", { x: x(t), y: bottom + 18, "text-anchor": "middle", class: "soft" }, t));
    parts.push(s("path", { d: `M${left} ${bottom}H${width - 6}`, class: "axis" }), s("text", { x: (left + width) / 2, y: height - 4, "text-anchor": "middle", class: "soft" }, "round"));
    const inside = s("g", { "clip-path": "url(#plot)" });
    for (const { e, which, points: p } of drawn) {
      const weak = both.value === "both" && which !== e.reported, group = s("g", { class: `c${e.colour}` });
      if (p.length > 1 && known(p[0][2]) && !weak) group.append(s("path", { class: "area", d: `M${p.map(([t, v, b]) => `${x(t)} ${y(v + b)}`).join("L")}L${[...p].reverse().map(([t, v, b]) => `${x(t)} ${y(v - b)}`).join("L")}Z` }));
      group.append(s("path", { class: `line ${which} ${weak ? "weak" : ""}`, d: `M${p.map(([t, v]) => `${x(t).toFixed(1)} ${y(v).toFixed(1)}`).join("L")}` }));
      const step = Math.max(1, Math.round(p.length / 6));
      p.forEach(([t, v], k) => { if (k % step === step - 1 || p.length === 1 || k === p.length - 1) group.append(marker(e.marker, x(t), y(v), weak ? 2.6 : 4)); });
      inside.append(group);
    }
    const round = Number(cursor.value);
    parts.push(s("clipPath", { id: "plot" }, s("rect", { x: left, y: 4, width: Math.max(1, width - left), height: bottom - 2 })), inside,
      s("path", { d: `M${x(round)} 6V${bottom}`, class: "cursor" }));
    const best = [...drawn].sort((a, b) => b.points[b.points.length - 1][1] - a.points[a.points.length - 1][1])[0];
    const label = best ? `Test ${judged.label} over ${last()} rounds, ${drawn.length} lines. Highest at the end: ${best.e.name} (${best.which}) with ${fixed(best.points[best.points.length - 1][1])}.` : "No line is chosen.";
    chart.x = x;
    return { label, height, parts };
  });
  chart.svg.addEventListener("pointermove", (event) => {
    const box = chart.svg.getBoundingClientRect();
    const round = Math.round(chart.x.back(((event.clientX - box.left) / box.width) * chart.svg.viewBox.baseVal.width));
    if (round !== Number(cursor.value)) { cursor.value = round; redraw(); }
  });

  function fillLegend() {
    const ends = setting.now.experiments.map((e, k) => [k, e]).sort(([, a], [, b]) => (b.final[shownSplit(b)].mean ?? 0) - (a.final[shownSplit(a)].mean ?? 0));
    legend.replaceChildren(...ends.map(([k, e]) => {
      const box = h("input", { type: "checkbox", checked: !off.has(k), onchange: () => { off[box.checked ? "delete" : "add"](k); redraw(); } });
      const value = h("output");
      value.dataset.of = k;
      return h("li", {}, h("label", {}, box, swatch(e, both.value === "one" && shownSplit(e) === "personal"), h("span", {}, e.name)), value);
    }));
  }
  const all = (on) => () => { off.clear(); if (!on) setting.now.experiments.forEach((_, k) => off.add(k)); fillLegend(); redraw(); };
  const listed = numbers(`${capital(judged.title)} over rounds`, () => {
    const shown = lines(), rounds = [...new Set(shown.flatMap((line) => line.points.map(([t]) => t)))].sort((a, b) => a - b);
    const maps = shown.map((line) => new Map(line.points.map(([t, y]) => [t, y])));
    return h("div", { class: "tall", tabindex: 0 }, table(`Test ${judged.label}`, [{ title: "round", value: (t) => t },
      ...shown.map((line, k) => ({ title: `${line.e.name} (${line.which})`, value: (t) => maps[k].get(t) ?? null, show: (t) => (maps[k].has(t) ? fixed(maps[k].get(t)) : "–") }))], rounds));
  });
  function redraw() {
    const round = Number(cursor.value);
    cursorText.textContent = `round ${round}`;
    for (const output of legend.querySelectorAll("output")) {
      const e = setting.now.experiments[output.dataset.of];
      output.textContent = splits(e).map((which) => { const p = at(lineOf(e, which), round); return p ? fixed(p[1]) : "–"; }).join(" / ");
    }
    chart.draw();
    listed.renew();
  }
  function renew() {
    decoded.clear();
    const follow = Number(cursor.value) >= Number(cursor.max);
    cursor.max = last();
    cursor.min = 1;
    if (follow) cursor.value = last();
    const some = setting.now.experiments.some((e) => e.curves[e.reported].of_sites);
    where.offer([["mean", "mean over sites"], ...(some ? setting.now.sites.map((site, i) => [i, site.name]) : [])]);
    fillLegend();
    redraw();
  }
  return part("curves", `${capital(judged.title)} over rounds`, "Received (solid) is the model as it comes from the server; personal (dashed) is the same model after local training at the site. Shaded: standard deviation over seeds.",
    [h("div", { class: "controls" }, where, both, h("label", {}, zoom, "Zoom in on later rounds"), h("label", {}, "Read values at ", cursor), cursorText),
      h("div", { class: "split" }, chart, h("div", {}, h("div", { class: "controls" },
        h("button", { type: "button", onclick: all(true) }, "All"), h("button", { type: "button", onclick: all(false) }, "None")), legend)), listed], renew);
}

// --- how it is spread over sites ---

function spreadPart(setting) {
  const FEW = 150;
  const measures = () => [[judged.name, judged.label], ...Object.keys(setting.now.experiments.find((e) => Object.keys(e.scores ?? {}).length)?.scores ?? {}).map((name) => [name, name])];
  const measure = choice("Measure", measures(), judged.name, redraw, "spread-measure");
  const valuesOf = (e) => {
    if (measure.value === judged.name) return e.final[shownSplit(e)].sites.map((v) => (known(v) ? judged.factor * v : v));
    return (e.scores?.[measure.value] ?? {})[shownSplit(e)] ?? [];
  };
  const average = (values) => { const v = values.filter(known); return v.reduce((a, b) => a + b, 0) / (v.length || 1); };
  const rowsOf = () => setting.now.experiments.map((e) => ({ e, values: valuesOf(e) })).filter((row) => row.values.filter(known).length)
    .sort((a, b) => average(b.values) - average(a.values));
  const digits = () => (measure.value === "accuracy" ? 1 : 3);
  const called = () => (measure.value === judged.name ? judged.title : measure.value);
  const chart = picture((width) => {
    const narrow = width < 520, over = narrow ? 16 : 0;  // a name stands above its row where there is no room beside it
    const rows = rowsOf(), row = 34 + over, top = 8, longest = Math.max(...rows.map(({ e }) => e.name.length)), left = narrow ? 0 : Math.min(310, 20 + 6.8 * longest);
    const height = top + row * rows.length + 40, parts = [];
    const every = rows.flatMap((each) => each.values.filter(known));
    const low = Math.min(...every), high = Math.max(...every), x = scale(low, high, left + 12, width - 52);
    for (const t of ticks(low, high, width / 110)) parts.push(s("path", { d: `M${x(t)} ${top}V${height - 36}`, class: "grid" }), s("text", { x: x(t), y: height - 20, "text-anchor": "middle", class: "soft" }, t));
    rows.forEach(({ e, values }, at) => {
      const y = top + row * (at + 0.5) + over / 2, mean = average(values), found = [];
      if (values.length <= FEW) {
        const piles = new Map();
        values.forEach((value, i) => {
          if (!known(value)) return;
          const place = Math.round(x(value) / 5), pile = piles.get(place) ?? 0;
          piles.set(place, pile + 1);
          const dot = s("circle", { cx: x(value), cy: y + (pile % 2 ? 1 : -1) * Math.ceil(pile / 2) * 4.2, r: 3.2, class: "dot faint" }, s("title", {}, `${setting.now.sites[i]?.name}: ${value.toFixed(digits())}`));
          found.push(dot);
        });
      } else {
        const bins = new Array(48).fill(0), place = scale(low, high, 0, 47.999);
        values.forEach((value) => { if (known(value)) bins[Math.floor(place(value))] += 1; });
        const most = Math.max(...bins), w = (x(high) - x(low)) / 48;
        found.push(bins.map((n, k) => s("rect", { x: x(low) + k * w, y: y + 13 - (26 * n) / most, width: Math.max(0.5, w - 0.6), height: (26 * n) / most, class: "dot faint" })));
      }
      parts.push(s("g", { class: `c${e.colour}` }, found),
        s("path", { d: `M${x(mean)} ${y - 14}V${y + 14}`, class: "mean" }),
        narrow ? s("text", { x: 0, y: y - 18, class: "halo" }, clip(e.name, 46)) : s("text", { x: left, y: y + 4, "text-anchor": "end" }, clip(e.name, 46)),
        s("text", { x: width - 2, y: y + 4, "text-anchor": "end" }, mean.toFixed(digits())));
    });
    parts.push(s("text", { x: width - 2, y: height - 5, "text-anchor": "end", class: "soft" }, `${called()} of a site, last round; the bar is the mean`));
    return { label: `${called()} of every site, one row for each of ${rows.length} methods, sorted by mean. Best: ${rows[0]?.e.name} with a mean of ${average(rows[0]?.values ?? []).toFixed(digits())}.`, height, parts };
  });
  const scores = h("div");
  function listScores() {
    const names = measures().slice(1).map(([name]) => name);
    scores.replaceChildren(...(names.length ? [table(`Beside ${judged.title}: mean over sites, last round, test data`, [
      { title: "method", text: true, value: splitNote },
      ...names.map((name) => { const mean = (e) => average((e.scores[name] ?? {})[shownSplit(e)] ?? []); return { title: name, value: mean, show: (e) => mean(e).toFixed(3) }; })],
    setting.now.experiments.filter((e) => Object.keys(e.scores).length), { sortable: true }),
    h("dl", { class: "facts" }, names.map((name) => [h("dt", {}, name), h("dd", {}, all.metrics[name] ?? "")]))] : []));
  }
  const listed = numbers("Every site", () => h("div", { class: "tall", tabindex: 0 }, table(`${called()} of each site, last round`, [
    { title: "site", text: true, value: (i) => setting.now.sites[i].name },
    ...rowsOf().map(({ e, values }) => ({ title: splitNote(e), value: (i) => values[i] ?? null, show: (i) => values[i]?.toFixed(digits()) ?? "–" }))],
  setting.now.sites.map((_, i) => i), { sortable: true })));
  function redraw() { chart.draw(); listed.renew(); listScores(); }
  return part("spread", `How ${judged.title} varies between sites`, "One dot for each site: a high mean can hide sites that are served badly. With several seeds, a dot is the mean over them.",
    [h("div", { class: "controls" }, measure), chart, listed, scores], () => { measure.offer(measures()); measure.classList.toggle("hidden", measures().length < 2); redraw(); });
}
