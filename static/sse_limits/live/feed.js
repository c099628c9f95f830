/* Where the page's content comes from: our own event stream, or asking again and again where there is none.
   Nothing is asked while the page is hidden or paused. */

const STREAM_FAILURES = 2;
const RETRY_STREAM_MS = 60_000;

export class Feed {
  /** `onView` gets each new content, `onState` the name of the state: live, polling, connecting, lost, denied. */
  constructor(room, onView, onState) {
    this.room = room;
    this.onView = onView;
    this.onState = onState;
    this.isStopped = true;
    this.failures = 0;
    this.streamAgainAt = 0;
  }

  start() {
    if (!this.isStopped) return;
    this.isStopped = false;
    if (Date.now() >= this.streamAgainAt) this.#stream();
    else this.#poll();
  }

  stop() {
    this.isStopped = true;
    this.source?.close();
    clearTimeout(this.timer);
  }

  /** Begin again: the page's filters have changed. */
  restart() {
    this.stop();
    this.start();
  }

  #stream() {
    this.onState("connecting");
    const source = (this.source = new EventSource(this.room.dataset.events));
    source.addEventListener("view", event => {
      this.failures = 0;
      this.onState("live");
      this.onView(JSON.parse(event.data));
    });
    source.addEventListener("error", () => {
      if (this.isStopped || source !== this.source) return;
      this.failures += 1;
      if (source.readyState === EventSource.CLOSED || this.failures >= STREAM_FAILURES) {
        source.close();
        this.streamAgainAt = Date.now() + RETRY_STREAM_MS;
        this.#poll();
      } else this.onState("connecting");
    });
  }

  async #poll() {
    let next = "lost";
    try {
      const answer = await fetch(this.room.dataset.now, { headers: { Accept: "application/json" } });
      if (answer.redirected || answer.status === 401 || answer.status === 403) next = "denied";
      else if (answer.ok) {
        const view = await answer.json();
        if (this.isStopped) return;
        next = "polling";
        this.onView(view);
      }
    } catch {
      next = "lost";
    }
    if (this.isStopped) return;
    this.onState(next);
    if (next === "denied") return;
    if (next === "polling" && Date.now() >= this.streamAgainAt) {
      this.failures = 0;
      this.#stream();
      return;
    }
    this.timer = setTimeout(() => this.#poll(), Number(this.room.dataset.pollSeconds) * 1000);
  }
}
