// How far a model's confidence can be trusted: reliability diagrams, of all sites together and of each.
const BINS = 15;  // of the confidence, of equal width, as in fedpac.metrics

function calibrationPart(setting) {
  const SMALL = 24;
  const binsOf = (e) => e.reliability?.[shownSplit(e)];
  const measured = () => setting.now.experiments.map((e, at) => [at, e]).filter(([, e]) => binsOf(e));
  if (!setting.now.experiments.some((e) => e.reliability?.received || e.reliability?.personal)) return null;
  const names = () => measured().map(([at, e]) => [at, e.name]);
  const others = () => [["", "nothing"], ...names()];
  const first = () => (measured().some(([at]) => at === setting.now.headline) ? setting.now.headline : measured()[0]?.[0]);
  const method = choice("Method", names(), first(), redraw, "calibration-method");
  const other = choice("Compare with", others(), known(setting.now.alone) ? setting.now.alone : "", redraw, "calibration-other");
  const where = choice("Of", [["", "all sites together"]], "", redraw, "calibration-site");
  const told = h("p", { class: "readout", role: "status" }), key = h("ul", { class: "key" });

  const binsAt = (e, site) => (site === "" ? binsOf(e)?.all : binsOf(e)?.sites?.[site]) ?? [];
  const share = (v) => `${(100 * v).toFixed(1)} %`;
  function figures(bins) {
    const n = bins.reduce((sum, [, samples]) => sum + samples, 0), mean = (k) => bins.reduce((sum, bin) => sum + bin[1] * bin[k], 0) / (n || 1);
    return { n, confidence: mean(2), accuracy: mean(3), error: bins.reduce((sum, [, samples, c, a]) => sum + samples * Math.abs(c - a), 0) / (n || 1) };
  }
  const wilson = (p, n, z = 1.96) => {
    const middle = (p + (z * z) / (2 * n)) / (1 + (z * z) / n), half = (z * Math.sqrt((p * (1 - p)) / n + (z * z) / (4 * n * n))) / (1 + (z * z) / n);
    return [Math.max(0, middle - half), Math.min(1, middle + half)];
  };
  const chosen = () => setting.now.experiments[method.value];
  const shown = () => [method.value, other.value].filter((at, k, every) => at !== "" && every.indexOf(at) === k).map((at) => setting.now.experiments[at]).filter((e) => e && binsAt(e, where.value).length);

  const chart = picture((width) => {
    const side = Math.min(width, 460), left = 58, top = 8, plot = side - left - 16, strip = 44, bottom = top + plot, height = bottom + 42 + strip + 24;
    const x = scale(0, 1, left, left + plot), y = scale(0, 1, bottom, top), parts = [];
    for (const t of [0, 0.2, 0.4, 0.6, 0.8, 1]) parts.push(
      s("path", { d: `M${left} ${y(t)}H${left + plot}M${x(t)} ${top}V${bottom}`, class: "grid" }),
      s("text", { x: left - 6, y: y(t) + 4, "text-anchor": "end", class: "soft" }, `${100 * t}`), s("text", { x: x(t), y: bottom + 16, "text-anchor": "middle", class: "soft" }, `${100 * t}`));
    parts.push(s("path", { d: `M${x(0)} ${y(0)}L${x(1)} ${y(1)}`, class: "cursor" }), s("path", { d: `M${left} ${top}V${bottom}H${left + plot}`, class: "axis", fill: "none" }),
      s("text", { x: left + plot / 2, y: bottom + 33, "text-anchor": "middle", class: "soft" }, "confidence (%)"),
      s("text", { transform: `translate(14 ${top + plot / 2}) rotate(-90)`, "text-anchor": "middle", class: "soft" }, "right (%)"));
    const es = shown(), most = Math.max(1, ...es.flatMap((e) => binsAt(e, where.value).map(([, n]) => n)));
    es.slice().reverse().forEach((e) => {
      const bins = binsAt(e, where.value);
      parts.push(s("g", { class: `c${e.colour}` },
        bins.map(([, n, c, a]) => { const [low, high] = wilson(a, n); return s("path", { class: "whisker thin", d: `M${x(c)} ${y(low)}V${y(high)}` }); }),
        bins.map(([, n, c, a]) => { const mark = marker(e.marker, x(c), y(a), 2.5 + 6 * Math.sqrt(n / most)); mark.append(s("title", {}, `${e.name}: ${n} predictions with a confidence of ${share(c)} on average, ${share(a)} right`)); return mark; })));
    });
    parts.push(s("text", { x: left + 8, y: top + 18, class: "soft halo" }, "right more often than it says"), s("text", { x: left + plot - 6, y: bottom - 8, "text-anchor": "end", class: "soft halo" }, "right less often than it says"));
    const wide = plot / BINS, base = height - 20;
    es.forEach((e, k) => parts.push(s("g", { class: `c${e.colour}` }, binsAt(e, where.value).map(([b, n]) => {
      const tall = (strip * n) / most, w = wide / es.length;
      return s("rect", { x: left + b * wide + k * w + 0.5, y: base - tall, width: Math.max(0.5, w - 1), height: tall, class: "dot faint" });
    }))));
    parts.push(s("path", { d: `M${left} ${base}H${left + plot}`, class: "axis" }), s("text", { x: left, y: height - 5, class: "soft" }, `bars: predictions in each bin, at most ${most}`));
    const label = es.length ? `Reliability diagram, ${whose()}: accuracy against confidence. ${es.map((e) => { const f = figures(binsAt(e, where.value)); return `${e.name}: confidence ${share(f.confidence)}, right ${share(f.accuracy)}`; }).join("; ")}. The numbers are in the table below.` : "No reliability was measured here.";
    return { label, height, width: side, parts };
  }, { id: "calibration-diagram" });

  function worstFirst() {
    const sites = binsOf(chosen())?.sites ?? {};
    return Object.keys(sites).map((i) => [Number(i), figures(sites[i]).error]).sort((a, b) => b[1] - a[1]);
  }
  const small = picture((width) => {
    const e = chosen(), sites = worstFirst().slice(0, SMALL), across = Math.max(2, Math.floor(width / 100)), cell = width / across, side = cell - 16, parts = [];
    sites.forEach(([i, error], at) => {
      const left = (at % across) * cell + 6, top = Math.floor(at / across) * (cell + 22) + 18, x = scale(0, 1, left, left + side), y = scale(0, 1, top + side, top);
      const bins = binsAt(e, String(i)), most = Math.max(...bins.map(([, n]) => n));
      parts.push(s("g", { class: `c${e.colour}` }, s("title", {}, `${setting.now.sites[i].name}: calibration error ${error.toFixed(3)}, ${figures(bins).n} predictions`),
        s("text", { x: left, y: top - 5 }, clip(setting.now.sites[i].name, Math.floor(side / 7))),
        s("rect", { x: left, y: top, width: side, height: side, class: "frame" }), s("path", { d: `M${x(0)} ${y(0)}L${x(1)} ${y(1)}`, class: "cursor" }),
        bins.map(([, , c, a]) => s("path", { class: "whisker thin", d: `M${x(c)} ${y(c)}V${y(a)}` })),
        bins.map(([, n, c, a]) => s("circle", { cx: x(c), cy: y(a), r: 1.5 + 3.5 * Math.sqrt(n / most), class: "dot" })),
        s("text", { x: left, y: top + side + 14, class: "soft" }, error.toFixed(3))));
    });
    const rows = Math.ceil(sites.length / across);
    return { label: `One small reliability diagram for each of ${sites.length} sites with ${e.name}, largest calibration error first: ${sites.slice(0, 3).map(([i, error]) => `${setting.now.sites[i].name} ${error.toFixed(3)}`).join(", ")}.`, height: Math.max(20, rows * (cell + 22)), parts };
  }, { id: "calibration-sites" });
  const smallTitle = h("h3");

  const whose = () => (where.value === "" ? "all sites together" : setting.now.sites[where.value].name);
  function tell() {
    told.textContent = shown().map((e) => {
      const { n, confidence, accuracy, error } = figures(binsAt(e, where.value)), gap = 100 * (confidence - accuracy);
      const judgement = Math.abs(gap) < 0.05 ? "on average it claims what it reaches" : `on average it claims ${Math.abs(gap).toFixed(1)} points ${gap > 0 ? "too much" : "too little"}`;
      return `${splitNote(e)}, ${whose()}: ${share(confidence)} sure, ${share(accuracy)} right of ${n} predictions; ${judgement}. Calibration error ${error.toFixed(3)}.`;
    }).join(" ") || "This was not measured here.";
    key.replaceChildren(...shown().map((e) => h("li", {}, swatch(e, shownSplit(e) === "personal"), splitNote(e))));
  }
  const listed = numbers("Reliability", () => h("div", { class: "tall", tabindex: 0 }, table(`${splitNote(chosen())}: predictions by confidence`, [
    { title: "site", text: true, value: ([name]) => name }, { title: "confidence %", value: ([, b]) => b, show: ([, b]) => `${((100 * b) / BINS).toFixed(1)} to ${((100 * (b + 1)) / BINS).toFixed(1)}` },
    { title: "predictions", value: ([, , n]) => n }, { title: "mean confidence %", value: ([, , , c]) => c, show: ([, , , c]) => (100 * c).toFixed(1) },
    { title: "right %", value: ([, , , , a]) => a, show: ([, , , , a]) => (100 * a).toFixed(1) }],
  [["all sites together", binsOf(chosen()).all], ...worstFirst().map(([i]) => [setting.now.sites[i].name, binsAt(chosen(), String(i))])].flatMap(([name, bins]) => bins.map((bin) => [name, ...bin])), { sortable: true })));
  const overview = h("div");
  function compare() {
    const mean = (e, name) => { const values = (e.scores?.[name]?.[shownSplit(e)] ?? []).filter(known); return values.length ? values.reduce((a, b) => a + b, 0) / values.length : null; };
    const column = (title, value, show) => ({ title, value, show: (row) => (known(value(row)) ? show(value(row)) : "–") }), plain = (v) => v.toFixed(3);
    const of = (key) => ([, e]) => figures(binsOf(e).all)[key];
    overview.replaceChildren(table("All sites together, last round, test data", [
      { title: "method", text: true, value: ([, e]) => splitNote(e) }, column("mean confidence", of("confidence"), share), column("right", of("accuracy"), share), column("calibration error", of("error"), plain),
      ...["ece", "brier"].filter((name) => measured().some(([, e]) => known(mean(e, name)))).map((name) => column(name === "ece" ? "calibration error, mean over sites" : "Brier score, mean over sites", ([, e]) => mean(e, name), plain))],
    measured(), { sortable: true }));
  }
  function redraw() {
    tell();
    chart.draw();
    const sites = worstFirst();
    smallTitle.textContent = sites.length ? `${chosen().name}, site by site: calibration error below each, largest first${sites.length > SMALL ? ` (${SMALL} of ${sites.length} sites)` : ""}` : "";
    small.classList.toggle("hidden", !sites.length);
    small.draw();
    listed.renew();
    compare();
  }
  function renew() {
    method.offer(names());
    other.offer(others());
    if (!chosen() || !binsOf(chosen())) return;
    const sites = binsOf(chosen()).sites ?? {};
    where.offer([["", "all sites together"], ...Object.keys(sites).map((i) => [i, setting.now.sites[i].name])]);
    redraw();
  }
  return part("calibration", "How far confidence can be trusted", "A model that is 90 % sure should be right 9 times in 10: then its points lie on the dotted line, and below the line it is overconfident. A larger point stands for more predictions; bars through the points of the large diagram are 95 % intervals. With few samples, even a well-calibrated model shows a calibration error.",
    [h("div", { class: "controls" }, method, other, where), told, key, h("div", { class: "half" }, chart, h("div", {}, smallTitle, small)), listed, overview], renew);
}
