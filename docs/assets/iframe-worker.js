/* Browsers start no worker from a page opened as a file. This runs its scripts in a hidden frame, so
   that the search works there too. Pages from a server keep the browser's own workers. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inner = this.frame.contentWindow;
      // Each script is added by an element and awaited, in order: a page cannot load synchronously.
      inner.importScripts = (...urls) =>
        urls.reduce((before, next) => before.then(() => this.load(new URL(next, url).href)), Promise.resolve());
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.load(url.toString()).then(() => {
        this.ready = true;
        this.waiting.forEach((data) => this.deliver(data));
      });
    }

    load(url) {
      const { document: inner } = this.frame.contentWindow;
      return new Promise((resolve, reject) => {
        const script = inner.createElement("script");
        script.src = url;
        script.onload = resolve;
        script.onerror = reject;
        inner.body.appendChild(script);
      });
    }

    deliver(data) {
      const inner = this.frame.contentWindow;
      inner.dispatchEvent(new inner.MessageEvent("message", { data }));
    }

    postMessage(data) {
      if (this.ready) this.deliver(data);
      else this.waiting.push(data);
    }

    terminate() {
      this.frame.remove();
    }
  };
}
