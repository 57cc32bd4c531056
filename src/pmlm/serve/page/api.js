// The server, as functions. A refusal is a Problem with the server's own line.

export class Problem extends Error {
  constructor(line, status, wait) {
    super(line);
    this.status = status;
    this.wait = wait;
  }
}

const token = () => sessionStorage.getItem("pmlm-token");
export const setToken = (value) => sessionStorage.setItem("pmlm-token", value);

async function ask(path, body, signal) {
  const headers = { "content-type": "application/json" };
  if (token()) headers.authorization = `Bearer ${token()}`;
  const how = body === undefined ? { headers, signal } : { method: "POST", headers, signal, body: JSON.stringify(body) };
  let response;
  try {
    response = await fetch(path, how);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The server cannot be reached. Is it running?", 0);
  }
  if (response.ok) return response;
  const said = await response.json().catch(() => ({}));
  throw new Problem(said.error ?? `The server answered ${response.status}.`, response.status,
    Number(response.headers.get("retry-after")) || 0);
}

export const models = async () => (await (await ask("/v1/models")).json()).models;
export const candidates = async (body) => (await (await ask("/v1/candidates", body)).json()).candidates;

/** Yields [name, data] for each event of a stream. */
export async function* stream(body, signal) {
  const response = await ask("/v1/generate/stream", body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value.replaceAll("\r", "");
    const blocks = rest.split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const name = /^event: (.*)$/m.exec(block)?.[1];
      const data = /^data: (.*)$/m.exec(block)?.[1];
      if (name && data) yield [name, JSON.parse(data)];
    }
  }
}
