// What numbers, events and errors are called on the page.

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const count = (value) => (Math.abs(value) < 1e6 ? whole.format(value) : short.format(value));
export const compact = (value) => (value < 1e4 ? whole.format(value) : short.format(value));
export const share = (part, all) => (all ? `${((100 * part) / all).toFixed(part === all ? 0 : 1)} %` : "–");
export const plural = (n, noun) => `${count(n)} ${noun}${n === 1 ? "" : "s"}`;
export const sum = (values) => Object.values(values ?? {}).reduce((all, value) => all + value, 0);

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 10) return `${value.toFixed(1)} s`;
  if (value < 120) return `${Math.round(value)} s`;
  return value < 7200 ? `${Math.round(value / 60)} min` : `${(value / 3600).toFixed(1)} h`;
}

const LOST = {
  expired: "the TTL ran out",
  slow: "its tool is too slow to wait for",
  pressure: "memory went to others",
  forgotten: "its lease ran out",
  released: "its client released it",
  last_step: "its last turn has ended",
  aborted: "its turn was aborted",
  reset: "the prefix cache was reset",
};
export const whyLost = (reason) => LOST[reason] ?? reason ?? "";

// A sentence for an event that is a decision, its kind, and whether it cost something; else null.
export function decision(event) {
  switch (event.event) {
    case "held":
      return { kind: "waits", text: `held back: ${event.reason}` };
    case "due":
      return { kind: "waits", text: `goes next: ${plural(event.passed, "later turn")} overtook it` };
    case "preempted":
      return { kind: "losses", isLoss: true, text: "preempted: its memory went to others" };
    case "evicted":
      return { kind: "losses", isLoss: true, text: `${plural(event.lost_tokens, "token")} had left the cache` };
    case "trimmed":
      return { kind: "losses", isLoss: true, text: `gives ${plural(event.blocks, "block")} of its KV, keeps ${count(event.left)}` };
    case "pinned":
      return { kind: "", text: `${plural(event.blocks, "block")} held for up to ${seconds(event.ttl_s)}: ${event.reason}` };
    case "decision": {
      const what = event.command ?? "no command";
      const speed = event.speed ? `, ${event.speed}` : "";
      return { kind: "predictions", text: `${what}${speed}: hold for ${seconds(event.ttl_s)}, ${event.reason}` };
    }
    case "unpinned": {
      const blocks = plural(event.blocks, "block");
      if (event.reason === "returned") {
        return { kind: "", text: `the next turn took ${blocks} over after ${seconds(event.held_s)}` };
      }
      const isLoss = ["pressure", "expired"].includes(event.reason);
      return { kind: isLoss ? "losses" : "", isLoss, text: `let ${blocks} go after ${seconds(event.held_s)}: ${whyLost(event.reason)}` };
    }
    case "closed":
      return { kind: "", text: `over after ${plural(event.turns, "turn")} (${event.reason})` };
    default:
      return null;
  }
}

export function waiting(job) {
  if (job.state === "waiting") return job.why ?? "";
  const predicted = job.predicted_p50_s !== null
    ? `${seconds(job.predicted_p50_s)} to ${seconds(job.predicted_p90_s)} predicted` : "";
  const tool = [job.command ?? job.tool, predicted].filter(Boolean).join(", ");
  if (job.state === "evicted") return [whyLost(job.why), job.is_tool_running ? tool : ""].filter(Boolean).join("; ");
  if (job.state === "tool" || job.state === "held") {
    const left = job.ttl_left_s === null ? "" : `held for ${seconds(job.ttl_left_s)} more`;
    return [tool, left].filter(Boolean).join("; ");
  }
  return job.expected_turns ? `of ${plural(job.expected_turns, "expected turn")}` : "";
}
