// Who learned from whom: the weights as a matrix and as a graph, round by round.
function weightsPart(setting) {
  const sources = () => setting.now.experiments.flatMap((e, k) => e.weights.map((w, n) => [`${k}/${n}`, `${e.name}, seed ${w.seed}`]));
  if (!sources().length) return null;
  const preferred = `${setting.now.headline}/0`;
  const source = choice("Run", sources(), sources().some(([key]) => key === preferred) ? preferred : sources()[0][0], renew, "weights-run");
  const site = choice("Site", [["", "all"]], "", () => { at = null; redraw(); }, "weights-site");
  const round = h("input", { type: "range", id: "weights-round", min: 0, max: 0, value: 0, oninput: redraw });
  const roundText = h("output", { for: "weights-round" });
  const least = h("input", { type: "range", id: "weights-least", min: 0, max: 30, value: 5, oninput: redraw });
  const leastText = h("output", { for: "weights-least" });
  const play = h("button", { type: "button", id: "weights-play", onclick: toggle }, "Play");
  const told = h("p", { class: "readout", role: "status" });
  let timer = null, at = null;  // at: the cell that the keyboard is on, [row, column]

  const current = () => { const [k, n] = source.value.split("/"); return setting.now.experiments[k].weights[n]; };
  function matrix() {
    const w = current(), bytes = bytesOf(w.values[Math.min(Number(round.value), w.values.length - 1)]), n = w.sites.length;
    return { w, n, of: (i, j) => (bytes[i * n + j] / 255) * w.top };
  }
  const nameOf = (w, i) => setting.now.sites[w.sites[i]]?.name ?? `client ${w.sites[i]}`;
  const groupOf = (w, i) => setting.now.sites[w.sites[i]]?.group ?? 0;
  const share = (v) => `${(100 * v).toFixed(1)} %`;

  const heat = picture((width) => {
    const { w, n, of } = matrix(), left = n > 40 ? 30 : 66, top = 20, side = Math.min(width, 560) - left - 2, cell = side / n, parts = [];
    for (let i = 0; i < n; i++) {
      const y = top + i * cell;
      if (n <= 40 || i % 10 === 0) parts.push(s("text", { x: left - 5, y: y + cell / 2 + 4, "text-anchor": "end" }, n > 40 ? String(w.sites[i]) : clip(nameOf(w, i), 9)));
      for (let j = 0; j < n; j++) {
        const v = of(i, j);
        if (v > 0) parts.push(s("rect", { x: left + j * cell, y, width: cell, height: cell, class: "cell", "fill-opacity": Math.max(0.06, v / w.top).toFixed(3) }));
      }
    }
    for (let i = 1; i < n; i++) if (groupOf(w, i) !== groupOf(w, i - 1)) parts.push(
      s("path", { d: `M${left + i * cell} ${top}V${top + side}M${left} ${top + i * cell}H${left + side}`, class: "axis" }));
    parts.push(s("rect", { x: left, y: top, width: side, height: side, fill: "none", class: "axis" }),
      s("text", { x: left, y: 13, class: "soft" }, "columns give, in the order of the rows"));
    const row = at ? at[0] : site.value === "" ? null : w.sites.indexOf(Number(site.value));
    if (row !== null && row >= 0) parts.push(s("rect", { class: "chosen", x: left, y: top + row * cell, width: side, height: cell }));
    if (at) parts.push(s("rect", { class: "chosen", x: left + at[1] * cell, y: top + at[0] * cell, width: cell, height: cell }));
    heat.place = (x, y) => [Math.floor((y - top) / cell), Math.floor((x - left) / cell)];
    return { label: `Matrix of weights in round ${w.rounds[round.value]}: a row for each of ${n} receiving sites, a column for each giving site. Arrow keys move over the cells.`, height: top + side + 4, width: left + side + 2, parts };
  }, { tabindex: 0, id: "weights-matrix" });

  const graph = picture((width) => {
    const { w, n, of } = matrix(), side = Math.min(width, 560), r = side / 2 - (n > 40 ? 16 : 48), c = side / 2, parts = [];
    const angle = (i) => (2 * Math.PI * i) / n - Math.PI / 2;
    const place = (i, q = r) => [c + q * Math.cos(angle(i)), c + q * Math.sin(angle(i))];
    const only = site.value === "" ? null : w.sites.indexOf(Number(site.value)), low = Number(least.value) / 100;
    let count = 0;
    for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) {
      const v = of(i, j);
      if (i === j || v < low || v <= 0 || (only !== null && i !== only)) continue;
      count += 1;
      const [x1, y1] = place(j), [x2, y2] = place(i), k = 0.35;
      parts.push(s("path", { class: `edge c${groupOf(w, j) % 8}`, d: `M${x1} ${y1}Q${c + (((x1 + x2) / 2) - c) * k} ${c + (((y1 + y2) / 2) - c) * k} ${x2} ${y2}`,
        "stroke-width": Math.max(0.6, (7 * v) / w.top).toFixed(2), "stroke-opacity": Math.max(0.25, v / w.top).toFixed(2) }, s("title", {}, `${nameOf(w, i)} takes ${share(v)} from ${nameOf(w, j)}`)));
    }
    for (let i = 0; i < n; i++) {
      const [x, y] = place(i), [tx, ty] = place(i, r + 13), right = Math.cos(angle(i)) > 0.2, mid = Math.abs(Math.cos(angle(i))) <= 0.2;
      parts.push(s("g", { class: `c${groupOf(w, i) % 8}` }, s("circle", { cx: x, cy: y, r: n > 40 ? 4 : 4 + 6 * Math.min(1, of(i, i)), class: "dot" }, s("title", {}, `${nameOf(w, i)} keeps ${share(of(i, i))} of its own`))));
      if (n <= 40) parts.push(s("text", { x: tx, y: ty + 4, "text-anchor": mid ? "middle" : right ? "start" : "end" }, clip(n > 12 ? String(w.sites[i]) : nameOf(w, i), 9)));
    }
    return { label: `Graph of ${n} sites on a circle with ${count} lines between giving and receiving sites, for weights of ${least.value} % or more. A larger dot keeps more of its own.`, height: side, width: side, parts };
  }, { id: "weights-graph" });

  function tell() {
    const { w, n, of } = matrix();
    if (at) {
      told.textContent = `Round ${w.rounds[round.value]}: ${nameOf(w, at[0])} takes ${share(of(...at))} from ${at[0] === at[1] ? "itself" : nameOf(w, at[1])}.`;
    } else if (site.value !== "") {
      const i = w.sites.indexOf(Number(site.value));
      const parts = [...Array(n).keys()].map((j) => [of(i, j), j]).filter(([v]) => v > 0.0005).sort((a, b) => b[0] - a[0]);
      told.textContent = `Round ${w.rounds[round.value]}: ${nameOf(w, i)}'s classifier is ${parts.slice(0, 6).map(([v, j]) => `${share(v)} ${j === i ? "its own" : nameOf(w, j)}`).join(", ")}${parts.length > 6 ? ", ..." : ""}.`;
    } else {
      let own = 0, group = 0, grouped = new Set(w.sites.map((_, i) => groupOf(w, i))).size > 1;
      for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) { if (i === j) own += of(i, i); else if (groupOf(w, i) === groupOf(w, j)) group += of(i, j); }
      told.textContent = `Round ${w.rounds[round.value]}: on average a site keeps ${share(own / n)} of its own classifier` +
        (grouped ? ` and takes ${share(group / n)} from its group. The method was not told the groups.` : ".");
    }
  }
  function redraw() {
    const w = current();
    roundText.textContent = `round ${w.rounds[round.value]}`;
    leastText.textContent = `${least.value} %`;
    tell();
    heat.draw();
    graph.draw();
    listed.renew();
  }
  function renew() {
    source.offer(sources());
    const w = current(), follow = Number(round.value) >= Number(round.max);
    round.max = w.rounds.length - 1;
    if (follow) round.value = round.max;
    at = null;
    site.offer([["", "all"], ...w.sites.map((i, k) => [i, nameOf(w, k)])]);
    redraw();
  }
  function toggle() {
    if (timer) { clearInterval(timer); timer = null; play.textContent = "Play"; return; }
    if (Number(round.value) >= Number(round.max)) round.value = 0;
    play.textContent = "Stop";
    timer = setInterval(() => {
      if (Number(round.value) >= Number(round.max)) return toggle();
      round.value = Number(round.value) + 1;
      redraw();
    }, 220);
    redraw();
  }
  heat.svg.addEventListener("pointermove", (event) => {
    const box = heat.svg.getBoundingClientRect(), k = heat.svg.viewBox.baseVal.width / box.width, n = current().sites.length;
    const [i, j] = heat.place((event.clientX - box.left) * k, (event.clientY - box.top) * k);
    if (i < 0 || j < 0 || i >= n || j >= n) return;
    if (!at || at[0] !== i || at[1] !== j) { at = [i, j]; tell(); heat.draw(); }
  });
  heat.svg.addEventListener("pointerleave", () => { at = null; tell(); heat.draw(); });
  heat.svg.addEventListener("keydown", (event) => {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key], n = current().sites.length;
    if (event.key === "Escape") { at = null; redraw(); }
    if (!step) return;
    event.preventDefault();
    at = at ? [Math.min(n - 1, Math.max(0, at[0] + step[0])), Math.min(n - 1, Math.max(0, at[1] + step[1]))] : [0, 0];
    tell();
    heat.draw();
  });
  const listed = numbers("Weights of this round", () => {
    const { w, n, of } = matrix(), rows = [];
    for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) if (of(i, j) > 0) rows.push([i, j, of(i, j)]);
    return h("div", { class: "tall", tabindex: 0 }, table(`Round ${w.rounds[round.value]}`, [
      { title: "site", text: true, value: ([i]) => nameOf(w, i) }, { title: "takes from", text: true, value: ([, j]) => nameOf(w, j) },
      { title: "weight", value: ([, , v]) => v, show: ([, , v]) => share(v) }], rows, { sortable: true }));
  });
  const some = () => { const w = current(); return w.sites.length < setting.now.sites.length || w.rounds.length < w.of; };
  const lead = "How much of each site's classifier comes from which site: rows receive, columns give, and a row sums to 100 %. Sites are ordered by group; lines part the groups." +
    (some() ? ` Drawn: ${current().sites.length} of ${setting.now.sites.length} sites and ${current().rounds.length} of ${current().of} recorded rounds.` : "");
  return part("weights", "Who learned from whom", lead, [
    h("div", { class: "controls" }, source, site, h("label", {}, "Round ", round), roundText, play, h("label", {}, "Graph: at least ", least), leastText),
    told, h("div", { class: "half" }, heat, graph), listed], renew);
}
