// The page: a stream of snapshots, drawn. All text of jobs is set as text, never as HTML.

import { Curves, MEAN_S, TurnTimes, curveImage, drawCurves, ratio } from "./curves.js";
import { EngineCard } from "./jobs.js";
import { STATES } from "./lanes.js";
import { Stream } from "./stream.js";
import { WASTED, count, decision, element, listed, plural, seconds, setText, share, sum } from "./words.js";

const byId = (id) => document.getElementById(id);
const MAX_DECISIONS = 100;

// Figures

const curves = new Curves();
const times = new TurnTimes();
const TOTALS = [
  ["ttft", "First token"],
  ["took", "Turn"],
  ["rate", "Tokens a second"],
  ["queue", "Requests"],
  ["jobs", "Jobs"],
  ["twice", "Tokens computed twice"],
  ["pins", "Pins that paid off"],
  ["predictor", "Tools within prediction"],
];

// Each: [value, text, note, lines of its curve, quantiles].
function speedOf() {
  const { base, now } = curves;
  const since = base ? `last ${MEAN_S / 60} min` : "since the start";
  const mean = (part) => {
    const [later, first] = ["later", "first"].map((which) => curves.mean(which, part));
    const lines = ["later", "first"].map((which) => curves.steps((from, to) => ratio(from, to, which, part)));
    return (later ?? first) !== null && [later ?? "", seconds(later), `┄ first turns ${seconds(first)}, ${since}`, lines, tailOf(part)];
  };
  const rate = curves.rate();
  return {
    ttft: mean("ttft"),
    took: mean("took"),
    rate: [rate, rate < 10 ? rate.toFixed(1) : count(Math.round(rate)), `generated, ${since}`, [curves.steps((from, to) => curves.rate(from, to))]],
    queue: [now.waiting, `${count(now.waiting)} waiting`, `┄ ${count(now.running)} running`, [curves.steps((_, to) => to.waiting), curves.steps((_, to) => to.running)]],
  };
}

// p50 and p99 of later and of first turns, each on a line where there is room, and of how many.
function tailOf(part) {
  const found = ["later", "first"].map((which) => [which, times.spread(which, part)]).filter(([, each]) => each);
  const told = found.map(([which, { p50, p99 }]) => `${which === "first" ? "first " : ""}p50 ${seconds(p50)}, p99 ${seconds(p99)}`.replaceAll(/(?<!,) /g, "\u00a0"));
  return [told.join("; "), `Of ${listed(found.map(([which, { n }]) => `${count(n)} ${which}`))} turns that ended in the last ${MEAN_S / 60} minutes`];
}

function totalsOf(engines) {
  const all = (pick) => engines.reduce((total, engine) => total + (pick(engine.stats) ?? 0), 0);
  const lost = {};
  for (const { stats } of engines) {
    for (const [reason, n] of Object.entries(stats.tokens.recomputed_tokens)) lost[reason] = (lost[reason] ?? 0) + n;
  }
  const worst = Object.entries(lost).sort((a, b) => b[1] - a[1])[0];
  const returned = all((stats) => stats.pin_ends_total?.returned);
  const wasted = all((stats) => sum(WASTED.map((end) => stats.pin_ends_total?.[end] ?? 0)));
  const within = all((stats) => (stats.predictions_total?.to_p50 ?? 0) + (stats.predictions_total?.to_p90 ?? 0));
  const predicted = all((stats) => sum(stats.predictions_total));
  const known = engines.flatMap((engine) => engine.jobs);
  const states = STATES.map((state) => [known.filter((job) => job.state === state).length, state]);
  const jobs = engines.reduce((total, engine) => total + engine.num_jobs, 0);
  const more = jobs - known.length;
  const over = [...cards.values()].reduce((total, card) => total + card.over.size, 0);
  const note = [...states, [more, "more"]].filter(([n]) => n > 0).map(([n, state]) => `${count(n)} ${state}`);
  return {
    ...speedOf(),
    jobs: [jobs, count(jobs), listed(note) || (over ? "the last ones are over" : "none seen yet")],
    twice: [sum(lost), count(sum(lost)), worst && worst[1] ? `most: ${worst[0].replaceAll("_", " ")}` : "none"],
    pins: [returned, share(returned, returned + wasted), `${count(returned)} of ${count(returned + wasted)}`],
    predictor: predicted && [within, share(within, predicted), `${count(within)} of ${plural(predicted, "tool")} up to p90`],
  };
}

function drawTotals(engines) {
  const list = byId("totals");
  for (const [id, title] of list.children.length ? [] : TOTALS) {
    const box = element("div");
    const [figure, value, note, tail] = [element("dd"), element("data", "figure"), element("dd", "soft"), element("dd", "soft")];
    value.id = `total-${id}`;
    figure.append(value);
    note.id = `note-${id}`;
    tail.id = `tail-${id}`;
    box.append(element("dt", "", title), figure, note, tail);
    list.append(box);
  }
  const totals = totalsOf(engines);
  for (const [id, title] of TOTALS) {
    const total = totals[id];
    const box = byId(`total-${id}`).closest("div");
    box.hidden = !total;
    if (!total) continue;
    const [value, text, note, lines, tail] = total;
    byId(`total-${id}`).value = String(value);
    setText(byId(`total-${id}`), text);
    setText(byId(`note-${id}`), note);
    if (tail) setText(byId(`tail-${id}`), tail[0]);
    if (tail) byId(`tail-${id}`).title = tail[1];
    if (!lines?.some((line) => line.length > 1)) continue; // no room is kept for a curve to come
    if (!box.querySelector("svg")) box.append(curveImage());
    drawCurves(box.querySelector("svg"), lines, title);
  }
}

// The one hit rate: of all later turns' prompt tokens, those found in the cache.
function drawHeadline(engines) {
  const all = (name) => engines.reduce((total, engine) => total + engine.stats.tokens[name], 0);
  const [hits, prompts] = [all("later_hit_tokens"), all("later_prompt_tokens")];
  byId("headline").hidden = !prompts;
  byId("total-hits").value = String(hits);
  setText(byId("total-hits"), share(hits, prompts));
  byId("meter-hits").style.width = `${(100 * hits) / prompts}%`;
  setText(byId("note-hits"), `${count(hits)} of ${count(prompts)} tokens since the start`);
}

// Decisions: a line for each pin, from its start to its end, and for each other one

const decisions = []; // newest first
const pins = new Map(); // by engine and job, the line of a pin that has not ended

function noteDecisions(engine, events) {
  const receivedMs = Date.now();
  for (const event of events) {
    const made = decision(event);
    if (!made) continue;
    const atMs = receivedMs - 1000 * (engine.at_s - event.at_s);
    const key = JSON.stringify([engine.engine, event.job_id]);
    const line = { ...made, text: event.text, job: event.job_id, at_s: event.at_s, atMs };
    const pin = pins.get(key);
    if (["decision", "unpinned"].includes(event.event) && pin) {
      line.text = event.event === "decision" ? event.text : `${pin.text}; ${event.text}`;
      decisions.splice(decisions.indexOf(pin), 1);
    }
    const isEnd = ["unpinned", "closed"].includes(event.event);
    if (isEnd) pins.delete(key);
    else if (made.kind === "pins") pins.set(key, line);
    // `closed` says it of a job that is over
    if (event.event !== "unpinned" || !["released", "last_step"].includes(event.reason)) decisions.unshift(line);
  }
  decisions.sort((a, b) => b.atMs - a.atMs);
  decisions.length = Math.min(decisions.length, MAX_DECISIONS);
}

function drawDecisions(wanted, kind) {
  const shown = decisions.filter((each) => (!kind || each.kind === kind) && (!wanted || each.job.toLowerCase().includes(wanted)));
  const items = shown.map((each) => {
    const item = element("li", each.isLoss ? "loss" : "");
    const time = element("time", "", new Date(each.atMs).toLocaleTimeString([], { hour12: false }));
    time.dateTime = new Date(each.atMs).toISOString();
    const who = element("span", "who", each.job);
    who.title = who.textContent;
    item.append(time, who, element("span", "what", each.text));
    return item;
  });
  byId("decisions").replaceChildren(...(items.length ? items : [element("li", "none", "None yet.")]));
}

// The page

const cards = new Map();
let latest = null;
let isPaused = false;

function drawServer([engine]) {
  if (!engine.model) return;
  const model = engine.model.split("/").at(-1);
  setText(byId("server"), `${model} on ${engine.host}`);
  setText(byId("versions"), listed([`up ${seconds(engine.at_s)}`, `policy ${engine.policy}`, `agentkv ${engine.version}`, `vLLM ${engine.vllm_version}`]));
  document.title = `${byId("server").textContent} · agentkv`;
}

function draw() {
  if (!latest) return;
  const wanted = byId("find").value.trim().toLowerCase();
  const { engines } = latest;
  drawServer(engines);
  drawHeadline(engines);
  drawTotals(engines);
  for (const engine of engines) cards.get(engine.engine).draw(engine, wanted);
  drawDecisions(wanted, byId("kind").value);
  byId("pressure").hidden = !engines.some((engine) => engine.stats.is_under_pressure);
}

function take(name, snapshot) {
  if (name !== "snapshot") return;
  latest = snapshot;
  for (const engine of snapshot.engines) {
    if (!cards.has(engine.engine)) {
      const card = new EngineCard(engine.engine, turnsOf);
      card.redraw = draw;
      if (stream.job) card.opened.add(stream.job);
      cards.set(engine.engine, card);
      byId("engines").append(card.card);
    }
    const fresh = cards.get(engine.engine).take(engine);
    times.take(engine, fresh);
    noteDecisions(engine, fresh);
  }
  curves.take(snapshot.engines);
  if (!isPaused) draw();
}

async function turnsOf(job, engine) {
  const response = await stream.fetch(`explain?job=${encodeURIComponent(job.job_id)}`, job.job_id);
  if (!response.ok) throw new Error(response.status === 404 ? "No turn of it has run yet." : `The server answers ${response.status}.`);
  const { jobs } = await response.json();
  return jobs.filter((each) => (each.engine ?? engine) === engine).flatMap((each) => each.turns);
}

function say(state, problem) {
  byId("status").dataset.state = state;
  const texts = { live: "live", gone: "not connected, trying again", refused: "a key is needed" };
  setText(byId("status"), texts[state] ?? state);
  setText(byId("problem"), problem);
  byId("problem").hidden = !problem;
  const isAsking = state === "refused";
  if (isAsking && byId("ask").hidden) {
    byId("ask").hidden = false;
    byId("key").focus();
  }
  if (!isAsking) byId("ask").hidden = true;
}

byId("replay").textContent = `agentkv replay ${location.origin}`;
byId("copy").addEventListener("click", () => {
  getSelection().selectAllChildren(byId("replay")); // also where the browser gives no clipboard
  navigator.clipboard?.writeText(byId("replay").textContent);
});

// By the system, light or dark; kept for this server's pages, where the browser keeps anything

const THEMES = ["auto", "light", "dark"];
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  setText(byId("theme"), `◐ ${theme}`);
  byId("theme").setAttribute("aria-label", `Theme: ${theme}`);
}
setTheme(localStorage.getItem("agentkv-theme") ?? "auto");
byId("theme").addEventListener("click", () => {
  setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
  localStorage.setItem("agentkv-theme", document.documentElement.dataset.theme);
});

const stream = new Stream("live", take, say);
byId("ask").addEventListener("submit", (submitted) => {
  submitted.preventDefault();
  stream.key = byId("key").value.trim();
  byId("key").value = "";
  stream.start();
});
byId("pause").addEventListener("click", () => {
  isPaused = !isPaused;
  byId("pause").setAttribute("aria-pressed", String(isPaused));
  setText(byId("pause"), isPaused ? "Go on" : "Pause");
  if (!isPaused) draw();
});
byId("find").value = stream.job ?? "";
byId("find").addEventListener("input", draw);
byId("kind").addEventListener("change", draw);
document.addEventListener("keydown", (pressed) => {
  if (pressed.key !== "/" || pressed.target.matches("input, select")) return;
  pressed.preventDefault();
  byId("find").focus();
});
// Nobody looks at a hidden tab: the server need not send.
document.addEventListener("visibilitychange", () => (document.hidden ? stream.stop() : stream.start()));
stream.start();
