// The page: a stream of snapshots, drawn, or the one snapshot that a file written by `agentkv record`
// or `agentkv report` holds. All text of jobs is set as text, never as HTML.

import { Lane, STATES, laneImage, view } from "./lanes.js";
import { Stream } from "./stream.js";
import { compact, count, decision, plural, seconds, share, sum, waiting } from "./words.js";

const byId = (id) => document.getElementById(id);
const recorded = byId("record") && JSON.parse(byId("record").textContent);
const MAX_ROWS = recorded ? Infinity : 64;
const MAX_DECISIONS = recorded ? 1000 : 100;

function element(name, className = "", text = "") {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Totals

const TOTALS = [
  ["hits", "Later turns from the cache"],
  ["twice", "Tokens computed twice"],
  ["pins", "Holds that paid off"],
  ["predictor", "Tools within prediction"],
  ["jobs", "Jobs"],
];

function totalsOf(engines) {
  const all = (pick) => engines.reduce((total, engine) => total + (pick(engine) ?? 0), 0);
  const savings = (engine) => engine.stats.savings ?? {};
  const compared = all((engine) => savings(engine).compared_tokens);
  const hits = all((engine) => savings(engine).compared_hit_tokens);
  const stock = all((engine) => savings(engine).stock_hit_tokens);
  const gainedS = all((engine) => savings(engine).gained_engine_s);
  const lost = {};
  for (const engine of engines) {
    for (const [reason, n] of Object.entries(savings(engine).recomputed_tokens ?? {})) {
      lost[reason] = (lost[reason] ?? 0) + n;
    }
  }
  const worst = Object.entries(lost).sort((a, b) => b[1] - a[1])[0];
  const returned = all((engine) => engine.stats.pin_ends_total?.returned);
  const overEnds = (ends) => (ends?.released ?? 0) + (ends?.last_step ?? 0); // the job has ended: nothing to pay off
  const ended = all((engine) => sum(engine.stats.pin_ends_total) - overEnds(engine.stats.pin_ends_total));
  const within = all((engine) => (engine.stats.predictions_total?.to_p50 ?? 0) + (engine.stats.predictions_total?.to_p90 ?? 0));
  const predicted = all((engine) => sum(engine.stats.predictions_total));
  const states = [...STATES, "over"].map((state) => [state, engines.flatMap((engine) => engine.jobs).filter((job) => job.state === state).length]);
  const heldBack = engines.flatMap((engine) => engine.jobs).filter((job) => job.held_back).length;
  const seen = states.filter(([, n]) => n).map(([state, n]) => `${n} ${state}`);
  const counts = engines.some((engine) => engine.stats.savings);
  return {
    hits: compared && [hits, share(hits, compared), `stock: about ${share(stock, compared)}; ${seconds(Math.abs(gainedS))} of the engine ${gainedS < 0 ? "lost" : "won"}`],
    twice: counts && [sum(lost), count(sum(lost)), worst && worst[1] ? `most: ${worst[0].replaceAll("_", " ")}` : "none"],
    pins: [returned, share(returned, ended), `${count(returned)} of ${count(ended)}`],
    predictor: predicted && [within, share(within, predicted), `${count(within)} of ${plural(predicted, "tool")} up to p90`],
    jobs: [all((engine) => engine.num_jobs), count(all((engine) => engine.num_jobs)), [...seen, heldBack ? `${heldBack} held back` : ""].filter(Boolean).join(", ") || "none seen yet"],
  };
}

function drawTotals(engines) {
  const list = byId("totals");
  if (!list.children.length) {
    for (const [id, title] of TOTALS) {
      const box = element("div");
      const figure = element("dd");
      const value = element("data", "figure");
      value.id = `total-${id}`;
      figure.append(value);
      const note = element("dd", "note");
      note.id = `note-${id}`;
      box.append(element("dt", "", title), figure, note);
      list.append(box);
    }
  }
  for (const [id, total] of Object.entries(totalsOf(engines))) {
    byId(`total-${id}`).closest("div").hidden = !total;
    if (!total) continue;
    const [value, text, note] = total;
    byId(`total-${id}`).value = String(value);
    setText(byId(`total-${id}`), text);
    setText(byId(`note-${id}`), note);
  }
}

// An engine: its pool, and a row for each job

const POOL = [
  ["running", "running"],
  ["held", "held"],
  ["others", "held for other clients"],
  ["cached", "free, cached"],
  ["free", "free"],
];
const COLUMNS = [["job", "Job"], ["lane", view.title], ["state", "State"], ["turn", "Turn"], ["tokens", "Tokens"], ["blocks", "Blocks"], ["why", "Why"]];

class EngineCard {
  constructor(number) {
    this.number = number;
    this.lanes = new Map(); // by job id
    this.rows = new Map();
    this.seen = -1;
    this.card = element("article", "engine");
    this.card.setAttribute("aria-label", `engine ${number}`);
    const bar = element("div", "bar");
    this.size = element("span", "size");
    bar.append(element("h3", "", `Engine ${number}`), this.size);
    this.pool = element("div", "pool");
    this.pool.setAttribute("role", "img");
    this.legend = element("ul", "legend");
    this.parts = {};
    for (const [name, title] of POOL) {
      const part = element("i", name);
      const item = element("li");
      const value = element("b");
      item.append(element("i", name), document.createTextNode(`${title} `), value);
      this.parts[name] = { part, item, value };
      this.pool.append(part);
      this.legend.append(item);
    }
    this.table = element("table");
    const caption = element("caption", "unseen", `Jobs of engine ${number}`);
    const head = element("thead");
    const heads = element("tr");
    for (const [name, title] of COLUMNS) {
      const cell = element("th", `c-${name}`, title);
      cell.scope = "col";
      heads.append(cell);
    }
    head.append(heads);
    this.body = element("tbody");
    this.table.append(caption, head, this.body);
    this.none = element("p", "none");
    this.card.append(bar, this.pool, this.legend, this.table, this.none);
  }

  take(engine) {
    if (engine.at_s < this.seen) {
      this.lanes.clear(); // it was restarted
      this.seen = -1;
    }
    const fresh = engine.events.filter((event) => event.at_s > this.seen);
    for (const event of fresh) this.laneOf(event.job_id).take(event);
    this.seen = engine.at_s;
    for (const job of recorded ? [] : engine.jobs) this.laneOf(job.job_id).correct(job, engine.at_s);
    for (const [id, lane] of this.lanes) {
      lane.forget(engine.at_s - view.seconds);
      if (!lane.spans.length) this.lanes.delete(id);
    }
    return fresh;
  }

  laneOf(jobId) {
    let lane = this.lanes.get(jobId);
    if (!lane) this.lanes.set(jobId, (lane = new Lane()));
    return lane;
  }

  draw(engine, wanted) {
    this.drawRows(engine, wanted);
    const { pool } = engine;
    this.pool.hidden = this.legend.hidden = !pool;
    if (!pool) return;
    const blocks = { ...pool, held: pool.held - engine.held_by_others, others: engine.held_by_others };
    const said = [];
    for (const [name, title] of POOL) {
      const { part, item, value } = this.parts[name];
      part.style.flexGrow = String(blocks[name]);
      item.hidden = name === "others" && !blocks.others;
      setText(value, count(blocks[name]));
      value.dataset.blocks = String(blocks[name]);
      said.push(`${title} ${blocks[name]}`);
    }
    this.pool.setAttribute("aria-label", `${pool.blocks} blocks: ${said.join(", ")}`);
    const used = share(pool.running + pool.held, pool.blocks);
    setText(this.size, `${used} of ${plural(pool.blocks, "block")} of ${pool.block_tokens} tokens in use`);
  }

  drawRows(engine, wanted) {
    const known = new Map(engine.jobs.map((job) => [job.job_id, job]));
    const over = [...this.lanes.keys()].filter((id) => !known.has(id)).map((id) => ({ job_id: id, state: "over" }));
    const jobs = [...engine.jobs, ...over].filter((job) => matches(job, wanted));
    const order = [...this.rows.keys()];
    const place = new Map(order.map((id, index) => [id, index]));
    const rank = (job) => (job.state === "over" ? 2 : job.state === "evicted" ? 1 : 0);
    jobs.sort((a, b) => rank(a) - rank(b) || (place.get(a.job_id) ?? 1e9) - (place.get(b.job_id) ?? 1e9));
    const shown = jobs.slice(0, MAX_ROWS);
    const rows = new Map(shown.map((job) => [job.job_id, this.rows.get(job.job_id) ?? makeRow()]));
    shown.forEach((job) => this.fill(rows.get(job.job_id), job, engine.at_s));
    const nodes = [...rows.values()].map((row) => row.row);
    if (nodes.length !== this.body.children.length || nodes.some((node, index) => this.body.children[index] !== node)) {
      this.body.replaceChildren(...nodes);
    }
    this.rows = rows;
    const total = Math.max(engine.num_jobs + over.length, jobs.length);
    const hidden = wanted ? jobs.length - shown.length : total - shown.length;
    setText(this.none, !shown.length ? (wanted ? "No job matches." : "No jobs. They appear with their first turn.") : hidden > 0 ? `and ${plural(hidden, "job")} more` : "");
    this.none.hidden = !this.none.textContent;
    this.table.hidden = !shown.length;
  }

  fill(row, job, at) {
    setText(row.job, job.job_id);
    row.job.title = job.parent_job_id ? `${job.job_id}, spawned by ${job.parent_job_id}` : job.job_id;
    this.laneOf(job.job_id).draw(row.lane, at);
    row.mark.className = job.state;
    setText(row.name, job.state);
    const isKnown = "turn" in job;
    setText(row.turn, isKnown ? String(job.turn) : "");
    setText(row.tokens, isKnown ? compact(job.tokens) : "");
    setText(row.blocks, isKnown ? compact(job.blocks) : "");
    const why = !isKnown ? "" : recorded ? job.why : waiting(job);
    setText(row.why, why);
    row.why.title = why;
  }
}

function makeRow() {
  const row = element("tr");
  const cells = Object.fromEntries(["job", "timeline", "state", "turn", "tokens", "blocks", "why"].map((name) => {
    const isNumber = ["turn", "tokens", "blocks"].includes(name);
    return [name, element("td", isNumber ? `${name} number` : name)];
  }));
  const lane = laneImage();
  const mark = element("i");
  const name = document.createTextNode("");
  cells.timeline.append(lane);
  cells.state.append(mark, name);
  row.append(...Object.values(cells));
  return { row, lane, mark, name, job: cells.job, turn: cells.turn, tokens: cells.tokens, blocks: cells.blocks, why: cells.why };
}

function matches(job, wanted) {
  return !wanted || [job.job_id, job.tool ?? "", job.command ?? ""].some((text) => text.toLowerCase().includes(wanted));
}

// Decisions

const decisions = []; // newest first

function noteDecisions(card, events, at) {
  const receivedMs = Date.now();
  for (const event of events) {
    const made = decision(event);
    if (made) decisions.unshift({ ...made, text: event.text, job: event.job_id, at_s: event.at_s, atMs: receivedMs - 1000 * (at - event.at_s) });
  }
  decisions.sort((a, b) => b.atMs - a.atMs);
  decisions.length = Math.min(decisions.length, MAX_DECISIONS);
}

function drawDecisions(wanted, kind) {
  const shown = decisions.filter((each) => (!kind || each.kind === kind) && (!wanted || each.job.toLowerCase().includes(wanted)));
  const items = shown.map((each) => {
    const item = element("li", each.isLoss ? "loss" : "");
    const time = element("time", "", recorded ? `${each.at_s.toFixed(1)} s` : new Date(each.atMs).toLocaleTimeString([], { hour12: false }));
    time.dateTime = recorded ? `PT${each.at_s}S` : new Date(each.atMs).toISOString();
    const who = element("span", "who", each.job);
    who.title = each.job;
    item.append(time, who, element("span", "what", each.text));
    return item;
  });
  byId("decisions").replaceChildren(...(items.length ? items : [element("li", "none", "None yet.")]));
}

// The page

const cards = new Map();
let latest = null;
let isPaused = false;

function draw() {
  if (!latest) return;
  const wanted = byId("find").value.trim().toLowerCase();
  drawTotals(latest.engines);
  for (const engine of latest.engines) cards.get(engine.engine).draw(engine, wanted);
  drawDecisions(wanted, byId("kind").value);
  byId("pressure").hidden = !latest.engines.some((engine) => engine.stats.is_under_pressure);
  const policies = [...new Set(latest.engines.map((engine) => engine.policy))].filter(Boolean);
  setText(byId("policy"), policies.length ? `policy ${policies.join(", ")}` : "");
}

function take(name, snapshot) {
  if (name !== "snapshot") return;
  latest = snapshot;
  for (const engine of snapshot.engines) {
    if (!cards.has(engine.engine)) {
      cards.set(engine.engine, new EngineCard(engine.engine));
      byId("engines").append(cards.get(engine.engine).card);
    }
    const card = cards.get(engine.engine);
    noteDecisions(card, card.take(engine), engine.at_s);
  }
  if (!isPaused) draw();
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

function showRecord() {
  const starts = recorded.engines.map((engine) => engine.at_s - engine.events[0].at_s);
  Object.assign(view, { seconds: Math.max(1, ...starts), title: `Over ${seconds(Math.max(...starts))}` });
  COLUMNS.find(([name]) => name === "lane")[1] = view.title;
  setText(document.querySelector("h1"), recorded.title);
  setText(byId("summary"), recorded.summary);
  byId("about").hidden = !recorded.summary;
  byId("pause").hidden = true;
  say(recorded.written, "");
  take("snapshot", recorded);
}

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
// Nobody looks at a hidden tab: the server need not send.
if (recorded) showRecord();
else {
  document.addEventListener("visibilitychange", () => (document.hidden ? stream.stop() : stream.start()));
  stream.start();
}
