// The card of an engine: its pool, and a row for each job, which opens for its turns.

import { Lane, SECONDS, TITLE, laneImage } from "./lanes.js";
import { compact, count, element, listed, plural, seconds, setText, share, why } from "./words.js";

const MAX_ROWS = 64;
const MAX_OVER = 8;
const POOL = [
  ["running", "running"],
  ["pinned", "pinned between turns"],
  ["others", "pinned for other clients"],
  ["cached", "free, cached"],
  ["free", "free"],
];
const COLUMNS = ["job", "timeline", "state", "turn", "time", "tokens", "cached", "why"];
const TITLES = { timeline: TITLE };
const NUMBERS = ["turn", "time", "tokens", "cached"];
const TURN_COLUMNS = ["Turn", "Waited", "First token", "Took", "Prompt", "Cached", "Reply", "What came after"];

export class EngineCard {
  // `turnsOf(jobId, engine)` gives a job's turns as /explain has them.
  constructor(number, turnsOf) {
    this.number = number;
    this.turnsOf = turnsOf;
    this.lanes = new Map(); // by job id
    this.over = new Map(); // by job id: how it ended
    this.rows = new Map();
    this.opened = new Set();
    this.seen = -1;
    this.card = element("article", "engine");
    this.card.setAttribute("aria-label", `engine ${number}`);
    const bar = element("div", "bar");
    this.size = element("span", "soft");
    bar.append(element("h3", "", `Engine ${number}`), this.size);
    this.pool = element("div", "pool");
    this.pool.setAttribute("role", "img");
    this.legend = element("ul", "legend");
    this.parts = {};
    for (const [name, title] of POOL) {
      const part = element("i", name);
      const item = element("li");
      const value = element("b");
      item.append(element("i", `${name} full`), document.createTextNode(`${title} `), value);
      this.parts[name] = { part, item, value };
      this.pool.append(part);
      this.legend.append(item);
    }
    this.table = element("table", "jobs");
    const head = element("thead");
    head.append(headRow(COLUMNS.map((name) => [`c-${name}`, TITLES[name] ?? name[0].toUpperCase() + name.slice(1)])));
    this.body = element("tbody");
    this.table.append(element("caption", "unseen", `Jobs of engine ${number}`), head, this.body);
    this.none = element("p", "none");
    this.card.append(bar, this.pool, this.legend, this.table, this.none);
  }

  // Takes a snapshot; returns the events that are new.
  take(engine) {
    if (engine.at_s < this.seen) {
      for (const known of [this.lanes, this.over, this.opened]) known.clear(); // it was restarted
      this.seen = -1;
    }
    const fresh = engine.events.filter((event) => event.at_s > this.seen);
    for (const event of fresh) {
      this.laneOf(event.job_id).take(event);
      this.over.delete(event.job_id);
      if (event.event === "closed") this.over.set(event.job_id, event);
    }
    this.seen = engine.at_s;
    for (const job of engine.jobs) {
      this.over.delete(job.job_id);
      this.laneOf(job.job_id).correct(job, engine.at_s);
    }
    for (const id of [...this.over.keys()].slice(0, -MAX_OVER)) this.over.delete(id);
    for (const [id, lane] of this.lanes) {
      lane.forget(engine.at_s - SECONDS);
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
    const blocks = { ...pool, pinned: pool.pinned - engine.pinned_by_others, others: engine.pinned_by_others };
    for (const [name] of POOL) {
      const { part, item, value } = this.parts[name];
      part.style.flexGrow = String(blocks[name]);
      item.hidden = name === "others" && !blocks.others;
      setText(value, count(blocks[name]));
      value.dataset.blocks = String(blocks[name]);
    }
    const said = POOL.map(([name, title]) => `${title} ${blocks[name]}`);
    this.pool.setAttribute("aria-label", `${pool.blocks} blocks: ${said.join(", ")}`);
    setText(this.size, `${share(pool.running + pool.pinned, pool.blocks)} of ${plural(pool.blocks, "block")} of ${pool.block_tokens} tokens in use`);
  }

  drawRows(engine, wanted) {
    const over = [...this.over.values()].reverse().map((end) => ({ ...end, state: "over", why: end.text.replace(/^over after [^:]*: /, "") }));
    const jobs = [...engine.jobs, ...over].filter((job) => matches(job, wanted));
    const place = new Map([...this.rows.keys()].map((id, index) => [id, index]));
    const rank = (job) => ["evicted", "over"].indexOf(job.state);
    const since = (job) => (job.state === "over" ? -job.at_s : (place.get(job.job_id) ?? 1e9));
    jobs.sort((a, b) => rank(a) - rank(b) || since(a) - since(b));
    const shown = jobs.slice(0, MAX_ROWS);
    const rows = new Map(shown.map((job) => [job.job_id, this.rows.get(job.job_id) ?? this.makeRow(job.job_id)]));
    shown.forEach((job) => this.fill(rows.get(job.job_id), job, engine.at_s));
    const nodes = [...rows.values()].flatMap((row) => (row.detail.hidden ? [row.row] : [row.row, row.detail]));
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

  makeRow(jobId) {
    const row = element("tr");
    const cells = Object.fromEntries(COLUMNS.map((name) => [name, element("td", NUMBERS.includes(name) ? `${name} number` : name)]));
    const [lane, mark, name, button] = [laneImage(), element("i"), document.createTextNode(""), element("button", "open")];
    button.type = "button";
    cells.job.append(button);
    cells.timeline.append(lane);
    cells.state.append(mark, name);
    row.append(...Object.values(cells));
    const detail = element("tr", "detail");
    const pane = element("td");
    pane.colSpan = COLUMNS.length;
    detail.append(pane);
    detail.hidden = true;
    const made = { row, detail, pane, lane, mark, name, button, cells, shown: "" };
    button.addEventListener("click", () => {
      this.opened[this.opened.has(jobId) ? "delete" : "add"](jobId);
      this.redraw();
    });
    return made;
  }

  fill(row, job, at) {
    const { cells } = row;
    setText(row.button, job.job_id);
    row.button.title = row.button.textContent;
    const lane = this.lanes.get(job.job_id);
    row.lane.classList.toggle("empty", !lane);
    (lane ?? new Lane()).draw(row.lane, at);
    row.mark.className = job.state;
    setText(row.name, job.state);
    setText(cells.turn, job.turns);
    setText(cells.time, seconds(job.took_s));
    setText(cells.tokens, job.context_tokens === undefined ? "" : compact(job.context_tokens));
    setText(cells.cached, share(job.tokens.later_hit_tokens, job.tokens.later_prompt_tokens));
    setText(cells.why, why(job));
    cells.why.title = cells.why.textContent;
    const isOpen = this.opened.has(job.job_id);
    row.button.setAttribute("aria-expanded", String(isOpen));
    row.detail.hidden = !isOpen;
    const stage = `${isOpen} ${job.turns} ${job.state}`;
    if (isOpen && row.stage !== stage) this.open(row, job);
    row.stage = stage;
  }

  async open(row, job) {
    const about = element("p", "", listed([`${plural(job.turns, "turn")} in ${seconds(job.took_s)}`, job.tokens.later_prompt_tokens ? `${share(job.tokens.later_hit_tokens, job.tokens.later_prompt_tokens)} of later turns’ prompts cached` : "", job.parent_job_id ? `spawned by ${job.parent_job_id}` : ""]));
    const link = element("a", "", "link to this job");
    link.href = `?job=${encodeURIComponent(job.job_id)}`;
    about.append(" · ", link);
    let turns;
    try {
      const hasRun = job.turns > 1 || job.state !== "waiting"; // else the server has nothing to explain
      turns = turnTable(hasRun ? await this.turnsOf(job, this.number) : []);
    } catch (error) {
      turns = element("p", "soft", error.message);
    }
    row.pane.replaceChildren(about, turns);
  }
}

function headRow(columns) {
  const row = element("tr");
  for (const [name, title] of columns) {
    const cell = element("th", name, title);
    cell.scope = "col";
    row.append(cell);
  }
  return row;
}

function turnTable(turns) {
  const table = element("table", "turns");
  const head = element("thead");
  head.append(headRow(TURN_COLUMNS.map((title) => ["", title])));
  const body = element("tbody");
  for (const turn of turns) {
    const row = element("tr");
    const texts = [
      turn.turn ?? "–",
      ...[turn.waited_s, turn.ttft_s, turn.took_s].map(seconds),
      count(turn.prompt_tokens),
      share(turn.hit_tokens, turn.prompt_tokens),
      turn.output_tokens === null ? "–" : count(turn.output_tokens),
      turn.pin ?? listed([turn.command, turn.gap_s === null ? "" : `next turn after ${seconds(turn.gap_s)}`]),
    ];
    row.append(...texts.map((text) => element("td", "", String(text))));
    body.append(row);
    if (turn.miss) {
      const cell = element("td", "miss", `computed ${count(turn.miss.tokens)} tokens again: ${turn.miss.why}${turn.miss.advice ? `. What to do: ${turn.miss.advice}.` : ""}`);
      cell.colSpan = TURN_COLUMNS.length;
      const miss = element("tr");
      miss.append(cell);
      body.append(miss);
    }
  }
  table.append(head, body);
  const wide = element("div", "wide");
  wide.append(turns.length ? table : element("p", "soft", "No turn of it has run yet."));
  return wide;
}

function matches(job, wanted) {
  return !wanted || [job.job_id, job.last_tool ?? "", job.command ?? ""].some((text) => text.toLowerCase().includes(wanted));
}
