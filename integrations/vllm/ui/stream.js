// Reads server-sent events by fetch, which can send an API key, and connects again by itself.

const KEY = "agentkv-key";
const MAX_WAIT_MS = 8000;
const SILENT_MS = 6000;
const UNSENDABLE = /[^\x20-\x7e]|%|^ | $/gu; // in a header, as the client has it

export class Stream {
  // `take(name, data)` gets each event; `say(state, problem)` what the connection is like.
  constructor(url, take, say) {
    this.url = url;
    this.job = new URLSearchParams(location.search).get("job");
    this.take = take;
    this.say = say;
    this.isWanted = false;
    this.abort = null;
    this.timer = 0;
    this.failures = 0;
  }

  get key() {
    return sessionStorage.getItem(KEY);
  }

  set key(text) {
    sessionStorage.setItem(KEY, text);
  }

  start() {
    if (this.isWanted) return;
    this.isWanted = true;
    this.failures = 0;
    this.connect();
  }

  stop() {
    this.isWanted = false;
    clearTimeout(this.timer);
    this.abort?.abort();
  }

  // `job`: a router in front then asks the server that has it.
  fetch(url, job, options = {}) {
    const headers = this.key ? { Authorization: `Bearer ${this.key}` } : {};
    if (job) headers["X-Session-ID"] = job.replace(UNSENDABLE, encodeURIComponent);
    return fetch(url, { headers, cache: "no-store", ...options });
  }

  async connect() {
    const abort = (this.abort = new AbortController());
    try {
      const response = await this.fetch(this.url, this.job, { signal: abort.signal });
      if (response.status === 401) {
        this.isWanted = false;
        this.say("refused", this.key ? "The server does not know this key." : "");
        return;
      }
      if (response.status === 404) {
        throw new Error("This server runs without agentkv's policies: under fcfs and priority, vLLM's own, there is nothing to see. Start it with --scheduling-policy agentkv.");
      }
      if (!response.ok) throw new Error(await problemOf(response));
      await this.read(response, abort);
      throw new Error("The stream ended.");
    } catch (error) {
      if (!this.isWanted || this.abort !== abort) return;
      const isNetwork = error instanceof TypeError || error.name === "AbortError";
      this.say("gone", isNetwork ? "The server does not answer." : error.message);
      this.failures += 1;
      const wait = Math.min(MAX_WAIT_MS, 500 * 2 ** this.failures);
      this.timer = setTimeout(() => this.isWanted && this.connect(), wait);
    }
  }

  async read(response, abort) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let silence = setTimeout(() => abort.abort(), SILENT_MS);
    let text = "";
    try {
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        clearTimeout(silence);
        silence = setTimeout(() => abort.abort(), SILENT_MS);
        text += value;
        const events = text.split("\n\n");
        text = events.pop();
        for (const event of events) this.deliver(event);
      }
    } finally {
      clearTimeout(silence);
    }
  }

  deliver(event) {
    const lines = event.split("\n");
    const value = (field) => lines.find((line) => line.startsWith(`${field}: `))?.slice(field.length + 2);
    const data = JSON.parse(value("data"));
    const name = value("event");
    if (name === "gone") throw new Error(data.problem);
    this.failures = 0;
    this.say("live", "");
    this.take(name, data);
  }
}

async function problemOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answers ${response.status}.`;
  }
}
