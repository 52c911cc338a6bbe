// During a run: the server sends how far it has come and what there is to show. This page only listens.
const stateLine = document.getElementById("state"), runsBox = document.getElementById("runs");
const say = (text) => { if (stateLine.textContent !== text) stateLine.textContent = text; };  // read out when it changes

function runStatus(run) {
  const shown = [];
  if (known(run.round)) {
    const bar = h("progress", { max: run.rounds, "aria-label": `rounds of ${run.name}` });
    bar.value = run.round;
    shown.push(bar);
  }
  const left = known(run.left) ? ` About ${duration(run.left)} left.` : "";
  shown.push(h("p", {}, h("strong", {}, run.name), ": ", run.text, left));
  if (run.failures) shown.push(h("p", {}, `${run.failures === 1 ? "1 failure" : `${run.failures} failures`} so far, the last in ${run.last_failure}`));
  if (run.sites.length) {
    const words = { up: "up", working: "working", late: "late", failed: "failed" };
    const count = (state) => run.sites.filter((site) => site.state === state).length;
    shown.push(h("p", {}, Object.keys(words).filter(count).map((state) => `${count(state)} ${words[state]}`).join(", "), run.more_sites ? ` of the first ${run.sites.length}` : ""),
      h("ul", { class: "sites" }, run.sites.map((site) => h("li", { class: site.state, title: site.why || null }, `${site.name}: ${words[site.state]}`))));
  }
  return h("div", {}, shown);
}

function showStatus(runs) {
  const states = new Set(runs.map((run) => run.state));
  say(states.has("running") ? "The run is in progress; this page updates by itself." : states.has("waiting") ? "Waiting for the run to start."
    : states.has("stopped") ? "The run has stopped." : states.has("unreadable") ? "A folder cannot be read." : "The run is finished. This page no longer changes.");
  runsBox.replaceChildren(...runs.map(runStatus));
}

const events = new EventSource(`events${location.search}`);
events.addEventListener("status", (event) => showStatus(JSON.parse(event.data)));
events.addEventListener("contents", (event) => show(JSON.parse(event.data)));
events.addEventListener("end", () => { events.close(); if (!stateLine.textContent.startsWith("The run is finished")) say("fedpac has stopped watching. What is shown stays."); });
events.addEventListener("error", () => { if (events.readyState !== EventSource.CLOSED) say("No word from fedpac at the moment; this page keeps trying. The run itself is not affected."); });
