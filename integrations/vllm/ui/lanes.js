// A job's states over time, from the events of the engine and corrected by its snapshots.

export const STATES = ["running", "tool", "pinned", "waiting", "evicted"];
const TOP = { pinned: 5, evicted: 8 }; // where a state's band begins, of 10: shape tells them apart, too
export const SECONDS = 120; // that lanes are drawn over
export const TITLE = "Last two minutes";
export const SVG = "http://www.w3.org/2000/svg";
const AFTER = {
  arrival: "waiting",
  waiting_to_running: "running",
  resumed: "running",
  preempted: "waiting",
  finish: "evicted", // unless `pinned` follows
  aborted: "evicted",
  pinned: "pinned",
};

export class Lane {
  constructor() {
    this.spans = []; // {state, from, to}; the last one is open while `to` is null
    this.turns = []; // when turns arrived
  }

  get state() {
    const last = this.spans.at(-1);
    return last && last.to === null ? last.state : null;
  }

  take(event) {
    const at = event.at_s;
    if (event.event === "arrival" && !event.retry) this.turns.push(at);
    if (event.event === "closed") this.set(null, at);
    else if (event.event === "tool_started" && this.state === "pinned") this.set("tool", at);
    else if (event.event === "tool_finished" && this.state === "tool") this.set("pinned", at);
    else if (event.event === "unpinned" && ["pinned", "tool"].includes(this.state)) this.set("evicted", at);
    else if (event.event in AFTER) this.set(AFTER[event.event], at);
  }

  // What the engine says now counts, where events were left out or are not kept.
  correct(job, at) {
    if (this.state !== job.state) this.set(job.state, at - Math.min(job.for_s, SECONDS));
  }

  set(state, at) {
    const last = this.spans.at(-1);
    if (last && last.to === null) {
      if (last.state === state) return;
      at = Math.max(at, last.from);
      if (at > last.from) last.to = at;
      else this.spans.pop();
    }
    if (state !== null) this.spans.push({ state, from: at, to: null });
  }

  forget(before) {
    this.spans = this.spans.filter((span) => span.to === null || span.to > before);
    this.turns = this.turns.filter((at) => at > before);
  }

  // Seconds in each state within the window.
  sums(now) {
    const sums = {};
    for (const { state, from, to } of this.spans) {
      const seconds = (to ?? now) - Math.max(from, now - SECONDS);
      if (seconds > 0) sums[state] = (sums[state] ?? 0) + seconds;
    }
    return sums;
  }

  // One path for each state, and a line where a turn arrived, in seconds from the window's start.
  draw(svg, now) {
    const start = now - SECONDS;
    const paths = Object.fromEntries(STATES.map((state) => [state, ""]));
    for (const { state, from, to } of this.spans) {
      const x = Math.max(0, from - start);
      const width = Math.max(0.25, (to ?? now) - start - x);
      if (state in paths) paths[state] += `M${x.toFixed(2)} ${TOP[state] ?? 0}h${width.toFixed(2)}V10h-${width.toFixed(2)}z`;
    }
    const shapes = STATES.filter((state) => paths[state]).map((state) => {
      const path = document.createElementNS(SVG, "path");
      path.setAttribute("class", state);
      path.setAttribute("d", paths[state]);
      return path;
    });
    const lines = this.turns.filter((at) => at > start).map((at) => {
      const line = document.createElementNS(SVG, "line");
      for (const [name, value] of [["x1", at - start], ["x2", at - start], ["y1", 0], ["y2", 10]]) {
        line.setAttribute(name, value.toFixed(2));
      }
      return line;
    });
    svg.replaceChildren(...shapes, ...lines);
    const parts = Object.entries(this.sums(now)).map(([state, s]) => `${state} ${s.toFixed(1)} s`);
    svg.setAttribute("aria-label", `${TITLE.toLowerCase()}: ${parts.join(", ") || "nothing"}`);
  }
}

export function laneImage() {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "lane");
  svg.setAttribute("viewBox", `0 0 ${SECONDS} 10`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  return svg;
}
